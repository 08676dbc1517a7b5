//! What the world's clients ask for: jobs, how they are published, how their handlers behave, who cancels, replays or
//! discards them.

use std::cell::OnceCell;
use std::time::Duration;

use longshore_domain::backoff::Backoff;
use longshore_domain::job::When;
use longshore_domain::{Job, JobOptions, JobType, Priority, Queue, RunId, Tenant};

use crate::chance::Chance;

/// How a job comes to its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A plain publish; its run id is made from its sequence.
    Bare,
    /// A plain publish with an id of the client's own, as many times as this says.
    Named(u32),
    /// By way of the intake, which writes the record first.
    Submitted,
}

/// What the handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Succeeds,
    /// The first so many attempts of the first round fail.
    Fails(u32),
    /// Every attempt of every round fails.
    AlwaysFails,
    Refuses,
    /// Every attempt of the first round kills its node.
    Kills,
    /// Runs into its time limit in the first round.
    Hangs,
    /// The first so many calls put the job back.
    Snoozes(u32),
    /// Nobody serves the type before then.
    Unserved(i64),
    /// Its job cannot be read.
    Unreadable,
}

/// What becomes of its dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Letter {
    Keep,
    Replay,
    Discard,
}

/// One run, as its client sees it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) way: Way,
    /// When it is published, in its part of the world.
    pub(crate) at: i64,
    pub(crate) behaviour: Behaviour,
    /// How long its handler takes, most of the time.
    pub(crate) takes: i64,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) options: Option<Box<JobOptions>>,
    pub(crate) cancel_at: Option<i64>,
    pub(crate) letter: Letter,
    /// Known once it is published: a minted id comes from the sequence.
    pub(crate) job: OnceCell<Job>,
}

impl Plan {
    pub(crate) fn draw(chance: &Chance, index: usize) -> Self {
        let way = match chance.below(8) {
            0..=3 => Way::Bare,
            4 => Way::Named(2),
            5 => Way::Named(1),
            _ => Way::Submitted,
        };
        let plan = Self { way, ..Self::draw_bare(chance) };
        if way != Way::Bare {
            let run_id = RunId::parse(&format!("r{index}")).expect("a letter and digits are a token");
            plan.name(run_id);
        }
        plan
    }

    pub(crate) fn draw_bare(chance: &Chance) -> Self {
        Self {
            way: Way::Bare,
            at: chance.between(0, 12_000),
            behaviour: behaviour(chance),
            takes: chance.pick(&[5, 20, 60, 300, 900, 2_500]),
            max_attempts: 1 + chance.below(4),
            backoff: backoff(chance),
            options: options(chance),
            cancel_at: chance.hits(1_500).then(|| chance.between(0, 20_000)),
            letter: chance.pick(&[Letter::Keep, Letter::Replay, Letter::Discard]),
            job: OnceCell::new(),
        }
    }

    /// Gives the run its id.
    pub(crate) fn name(&self, run_id: RunId) {
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").expect("a letter is a token"),
            run_id,
            options: self.options.clone(),
        };
        self.job.set(job).expect("a run is named once");
    }

    pub(crate) fn job(&self) -> &Job {
        self.job.get().expect("only published runs are worked on")
    }

    /// What the intake takes in can be read.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.behaviour == Behaviour::Unreadable && self.way != Way::Submitted
    }

    pub(crate) fn minted(&self) -> bool {
        self.way == Way::Bare
    }
}

fn behaviour(chance: &Chance) -> Behaviour {
    match chance.below(16) {
        0..=5 => Behaviour::Succeeds,
        6 | 7 => Behaviour::Fails(1 + chance.below(3)),
        8 | 9 => Behaviour::AlwaysFails,
        10 => Behaviour::Refuses,
        11 => Behaviour::Kills,
        12 => Behaviour::Hangs,
        13 => Behaviour::Snoozes(1 + chance.below(3)),
        14 if chance.hits(5_000) => Behaviour::Unreadable,
        14 => Behaviour::Unserved(chance.between(2_000, 30_000)),
        _ => Behaviour::Unserved(chance.between(0, 60_000)),
    }
}

fn backoff(chance: &Chance) -> Backoff {
    let delay = || Duration::from_millis(u64::try_from(chance.between(0, 900) * chance.between(1, 3)).unwrap_or(0));
    Backoff::Delays(vec![delay(), delay(), delay()])
}

fn options(chance: &Chance) -> Option<Box<JobOptions>> {
    let after =
        |from, to| Some(When::After(Duration::from_millis(u64::try_from(chance.between(from, to)).unwrap_or(0))));
    let mut options = JobOptions::default();
    match chance.below(10) {
        0 => options.run_at = after(50, 6_000),
        1 => {
            options.run_at = after(50, 3_000);
            options.expires = after(100, 9_000);
        }
        2 => options.expires = after(20, 5_000),
        3 => options.deadline = after(1_000, 9_000),
        _ => return None,
    }
    Some(Box::new(options))
}
