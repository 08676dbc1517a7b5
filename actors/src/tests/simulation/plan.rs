//! The plans of the world's clients: jobs, how they are published, how their handlers behave, and whether they are
//! cancelled, replayed or discarded.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Headers;
use longshore_backbone::fingerprint::Fingerprint;
use longshore_backbone::wire::header::then::NAME;
use longshore_chance::Chance;
use longshore_domain::backoff::Backoff;
use longshore_domain::job::{Then, Unique, When};
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::{Job, JobOptions, JobType, Priority, Queue, RunId, Tenant, Timestamp};

use crate::commit::PublishedJob;
use crate::tests::simulation::world::Kind;

/// How a job gets into its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A plain publish; its run id is derived from its sequence.
    Bare,
    /// A plain publish with an id of the client's own, as many times as this says.
    Named(u32),
    /// Through the intake, which writes the record first.
    Submitted,
    /// A plain publish that claims to be a node's message of this run.
    Forged(usize),
    /// By the node on which this run completes, which it follows in a chain.
    Follows(usize),
}

impl Way {
    /// The run that a forged message names.
    pub(crate) fn is_forged(self) -> Option<usize> {
        if let Self::Forged(parent) = self { Some(parent) } else { None }
    }
}

/// What else a client that submits does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Besides {
    Nothing,
    /// Publishes the same job bare, this much later.
    Publishes(i64),
    /// Publishes the same job bare instead, if its first submission is not answered.
    TurnsToPublishing,
}

/// How the handler behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Succeeds,
    /// This many attempts at the beginning of the first round fail.
    Fails(u32),
    /// Every attempt of every round fails.
    AlwaysFails,
    Refuses,
    /// Every attempt of the first round kills its node.
    Kills,
    /// Runs into its time limit in the first round.
    Hangs,
    /// This many calls at the beginning snooze the job.
    Snoozes(u32),
    /// No handler serves the type before this time.
    Unserved(i64),
    /// Its job cannot be read.
    Unreadable,
}

/// What its client does with its dead letter.
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
    pub(crate) besides: Besides,
    /// Its idempotency key, which it shares with the next runs.
    pub(crate) key: Option<usize>,
    /// Its concurrency key.
    pub(crate) group: Option<u32>,
    /// The jobs of such a key start in their order.
    pub(crate) is_ordered: bool,
    /// When the key is free again.
    pub(crate) scope: Unique,
    /// It takes the place of the run that has its key, if that has not started.
    pub(crate) replaces: bool,
    /// Two submissions of a key with the same payload are the same job, with the same options.
    pub(crate) payload: &'static [u8],
    /// When it is published, counted from the start of its part of the world.
    pub(crate) at: i64,
    pub(crate) behaviour: Behaviour,
    /// How long its handler takes, most of the time.
    pub(crate) takes: i64,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    /// The settings of its type.
    pub(crate) policies: OnceCell<Policies>,
    pub(crate) options: Option<Box<JobOptions>>,
    pub(crate) cancel_at: Option<i64>,
    /// When it is rescheduled, if it waits for its time then, and by how much.
    pub(crate) reschedule_at: Option<(i64, i64)>,
    pub(crate) letter: Letter,
    /// When its record has been kept for long enough, if that is before the world ends.
    pub(crate) expires_at: Option<i64>,
    /// Known once it is published: a derived id comes from the sequence.
    pub(crate) job: OnceCell<Job>,
    /// The sequence that its id is derived from.
    sequence: Cell<Option<u64>>,
    /// The same job under the id with the time it was stored at, if its own id is taken.
    timed: OnceCell<Job>,
    fingerprint: OnceCell<Fingerprint>,
}

/// How long a job waits for a handler before that counts as a failed attempt.
const GRACE: Duration = Duration::from_millis(2_500);

/// How many runs a chain has.
const LINKS: usize = 3;

/// The maximum number of runs that share a key.
pub(crate) const OF_A_KEY: usize = 6;

impl Plan {
    /// The runs of a world.
    pub(crate) fn draw_all(chance: &Chance, count: usize, kind: Kind) -> Vec<Self> {
        let mut plans: Vec<Self> = Vec::with_capacity(count + 4);
        let of_a_key = if kind == Kind::Keys { 5_000 } else { 1_000 };
        while plans.len() < count {
            let index = plans.len();
            if index + 3 <= count && chance.hits(of_a_key) {
                plans.extend(Self::draw_of_a_key(chance, index));
            } else if index + 3 <= count && chance.hits(800) {
                plans.extend(Self::draw_of_a_scope(chance, index));
            } else if index + OF_A_KEY <= count && chance.hits(if kind == Kind::Replacing { 7_000 } else { 60 }) {
                plans.extend(Self::draw_replacing_at_once(chance, index));
            } else if index + 3 <= count && chance.hits(400) {
                plans.extend(Self::draw_replacing(chance, index));
            } else if index + LINKS <= count && chance.hits(if kind == Kind::Chains { 8_000 } else { 300 }) {
                plans.extend(Self::draw_chain(chance, index));
            } else {
                plans.push(Self::draw(chance, index, kind));
            }
        }
        plans.iter_mut().for_each(|plan| plan.suit(kind, chance));
        plans
    }

    /// Changes the plan as the world's kind has it.
    fn suit(&mut self, kind: Kind, chance: &Chance) {
        match kind {
            Kind::Keys if self.key.is_some() && chance.hits(3_000) => {
                self.cancel_at = Some(self.at + chance.between(0, 3_000));
            }
            Kind::ShortFreezes if chance.hits(7_000) => {
                self.cancel_at = Some(self.at + chance.between(0, 200));
            }
            Kind::LongAttempts => self.takes = chance.pick(&[900, 2_500]),
            _ => {}
        }
    }

    fn draw(chance: &Chance, index: usize, kind: Kind) -> Self {
        let way = match chance.below(16) {
            0..=7 => Way::Bare,
            _ if kind == Kind::LanesMadeAnew && chance.hits(7_500) => Way::Bare,
            8..=9 => Way::Named(2),
            10..=11 => Way::Named(1),
            12 if index > 0 && chance.hits(5_000) => Way::Forged(index - 1),
            _ => Way::Submitted,
        };
        let besides = match chance.below(4) {
            0 => Besides::Publishes(chance.between(0, 3_000)),
            1 => Besides::TurnsToPublishing,
            _ => Besides::Nothing,
        };
        let plan = Self { way, besides, ..Self::draw_bare(chance) };
        if matches!(way, Way::Named(_) | Way::Submitted) {
            plan.name_as(index);
        }
        plan
    }

    /// Draws a chain: each run begins once the one before has completed.
    fn draw_chain(chance: &Chance, index: usize) -> [Self; LINKS] {
        let first = chance.pick(&[Way::Submitted, Way::Named(1)]);
        let mut id = RunId::parse(&format!("r{index}")).expect("a letter and digits are a token");
        std::array::from_fn(|nth| {
            let way = if nth == 0 { first } else { Way::Follows(index + nth - 1) };
            let mut plan = Self { way, ..Self::draw_bare(chance) };
            // Its options are those that the one before says: none but what follows in turn.
            plan.options = (nth + 1 < LINKS)
                .then(|| Box::new(JobOptions { then: Some(then(LINKS - nth - 1)), ..JobOptions::default() }));
            plan.name(id.clone());
            id = id.then();
            plan
        })
    }

    /// Draws two ids that the intake may give to one client's submissions of a key, and a bare publish of the same key,
    /// by the same client or another.
    fn draw_of_a_key(chance: &Chance, index: usize) -> [Self; 3] {
        let at = chance.between(0, 9_000);
        let besides = chance.pick(&[Besides::Nothing, Besides::TurnsToPublishing]);
        let plain = || Self { key: Some(index), behaviour: Behaviour::Succeeds, ..Self::draw_bare(chance) };
        let bare_at = at + chance.pick(&[0, 10, 30, 100, 1_000, 5_000]);
        let first = Self { way: Way::Submitted, at, besides, ..plain() };
        let second = Self { way: Way::Submitted, at: at + chance.between(0, 4_000), ..plain() };
        let second = Self { options: first.options.clone(), max_attempts: first.max_attempts, ..second };
        let third = Self { at: bare_at, expires_at: None, ..plain() };
        first.name_as(index);
        second.name_as(index + 1);
        let first = Self { expires_at: chance.hits(3_000).then(|| chance.between(at + 4_000, 20_000)), ..first };
        [first, second, third]
    }

    /// Draws bare publishes of a key that is free again once its job starts or its run has ended.
    fn draw_of_a_scope(chance: &Chance, index: usize) -> [Self; 3] {
        let (at, scope) = (chance.between(0, 9_000), chance.pick(&[Unique::Queued, Unique::Active]));
        let soon = chance.pick(&[20, 200, 1_000, 4_000]);
        let one = || {
            let at = at + chance.between(0, soon);
            Self { key: Some(index), scope, at, ..Self::draw_bare(chance) }
        };
        [one(), one(), one()]
    }

    /// Draws submissions of a key of which all but the first replace the one before, nearly at once.
    fn draw_replacing_at_once(chance: &Chance, index: usize) -> [Self; OF_A_KEY] {
        let (at, scope) = (chance.between(0, 9_000), chance.pick(&[Unique::Window, Unique::Active]));
        let soon = chance.pick(&[20, 100, 600]);
        std::array::from_fn(|nth| {
            let at = if nth == 0 { at } else { at + 5 + chance.between(0, soon) };
            let payload: &[u8] = [b"1", b"2", b"3", b"4", b"5", b"6"][nth];
            let behaviour = if nth == 0 { Behaviour::Succeeds } else { behaviour(chance) };
            let plain = Self { key: Some(index), scope, behaviour, ..Self::draw_bare(chance) };
            let plan = Self { way: Way::Submitted, replaces: nth > 0, at, payload, ..plain };
            plan.name_as(index + nth);
            plan
        })
    }

    /// Draws a submission of a key, one that replaces it, and another one or a bare publish of the same key.
    fn draw_replacing(chance: &Chance, index: usize) -> [Self; 3] {
        let (at, scope) = (chance.between(0, 9_000), chance.pick(&[Unique::Window, Unique::Active]));
        let plain = || Self { key: Some(index), scope, behaviour: Behaviour::Succeeds, ..Self::draw_bare(chance) };
        let later = || at + chance.pick(&[5, 50, 500, 3_000]);
        let first = Self { way: Way::Submitted, at, payload: b"1", ..plain() };
        let second = Self { way: Way::Submitted, replaces: true, at: later(), payload: b"2", ..plain() };
        // Two that replace it may come at once.
        let third = match chance.hits(5_000) {
            true => {
                let at = if chance.hits(5_000) { second.at + chance.between(0, 30) } else { later() };
                Self { way: Way::Submitted, replaces: true, at, payload: b"3", ..plain() }
            }
            false => Self { at: later(), ..plain() },
        };
        first.name_as(index);
        second.name_as(index + 1);
        if third.way == Way::Submitted {
            third.name_as(index + 2);
        }
        [first, second, third]
    }

    pub(crate) fn draw_bare(chance: &Chance) -> Self {
        let at = chance.between(0, 12_000);
        // Soon: about when the job is delivered and begun.
        let (soon, late) = (at + chance.between(0, 150), chance.between(0, 20_000));
        Self {
            way: Way::Bare,
            besides: Besides::Nothing,
            key: None,
            group: None,
            is_ordered: false,
            scope: Unique::Window,
            replaces: false,
            payload: b"",
            at,
            behaviour: behaviour(chance),
            takes: chance.pick(&[5, 20, 60, 300, 900, 2_500]),
            max_attempts: 1 + chance.below(4),
            backoff: backoff(chance),
            options: options(chance),
            cancel_at: chance.hits(1_500).then(|| if chance.hits(5_000) { soon } else { late }),
            reschedule_at: chance
                .hits(2_000)
                .then(|| (at + chance.between(0, 6_000), chance.pick(&[-20_000, -500, 500, 4_000]))),
            letter: chance.pick(&[Letter::Keep, Letter::Replay, Letter::Discard]),
            expires_at: None,
            policies: OnceCell::new(),
            job: OnceCell::new(),
            sequence: Cell::new(None),
            timed: OnceCell::new(),
            fingerprint: OnceCell::new(),
        }
    }

    fn name_as(&self, index: usize) {
        self.name(RunId::parse(&format!("r{index}")).expect("a letter and digits are a token"));
    }

    /// Gives the run its id.
    pub(crate) fn name(&self, run_id: RunId) {
        self.sequence.set(run_id.as_derived().map(|(_, sequence)| sequence));
        self.job.set(self.job_as(run_id)).expect("a run is named once");
    }

    fn job_as(&self, run_id: RunId) -> Job {
        Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").expect("a letter is a token"),
            run_id,
            options: self.options_with_key(),
        }
    }

    fn options_with_key(&self) -> Option<Box<JobOptions>> {
        let own_run_id = !self.has_derived_id();
        if self.key.is_none() && self.group.is_none() && !own_run_id {
            return self.options.clone();
        }
        let concurrency_key = self.group.map(|group| group.to_string());
        let options =
            JobOptions { own_run_id, concurrency_key, ..self.options.as_deref().cloned().unwrap_or_default() };
        let Some(key) = self.key else { return Some(Box::new(options)) };
        Some(Box::new(JobOptions { idempotency_key: Some(key.to_string()), unique: self.scope, ..options }))
    }

    /// The settings of its type.
    pub(crate) fn policies(&self) -> &Policies {
        self.policies.get_or_init(|| {
            let default_type = TypePolicy {
                max_attempts: self.max_attempts,
                backoff: self.backoff.clone(),
                max_snoozes: u32::MAX,
                no_handler_grace: GRACE,
                ordered: self.is_ordered,
                ..TypePolicy::default()
            };
            Policies { default_type, ..Policies::default() }
        })
    }

    pub(crate) fn job(&self) -> &Job {
        self.job.get().expect("only published runs are worked on")
    }

    /// The sequence that the id of its job is derived from, if it is.
    pub(crate) fn derived_from(&self) -> Option<u64> {
        assert!(self.job.get().is_some(), "only published runs have a key");
        self.sequence.get()
    }

    /// The same job under the id with the time its message was stored at.
    pub(crate) fn timed_job(&self, at: Timestamp) -> &Job {
        self.timed.get_or_init(|| self.job_as(RunId::derived_at(&self.job().run_id, at)))
    }

    /// The fingerprint of its submission, as a claim of its key has it.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint.get_or_init(|| Fingerprint::of(self.job().job_type.as_str(), None, self.payload)).clone()
    }

    /// Whether the job runs under this id with the time its message was stored at.
    pub(crate) fn is_timed_as(&self, run_id: &RunId) -> bool {
        self.timed.get().is_some_and(|job| job.run_id == *run_id)
    }

    /// Whether the job becomes a dead letter as it is because it cannot be read. The intake accepts only jobs that can
    /// be read.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.behaviour == Behaviour::Unreadable && self.way == Way::Bare
    }

    /// How much time its attempts are known to need, if it has a deadline: nothing is known of every second job.
    pub(crate) fn needs(&self) -> Option<Duration> {
        let has_deadline = self.options.as_ref().is_some_and(|options| options.deadline.is_some());
        (has_deadline && self.at % 2 == 0).then(|| Duration::from_millis(self.takes.unsigned_abs()))
    }

    /// Its message, as far as these worlds read it: the job that follows.
    pub(crate) fn payload(&self) -> PublishedJob {
        let Some(then) = self.options.as_ref().and_then(|options| options.then.as_ref()) else {
            return PublishedJob::default();
        };
        let mut headers = Headers::new();
        headers.insert(NAME, then.job.as_str());
        PublishedJob { headers: Some(Arc::new(headers)), ..PublishedJob::default() }
    }

    /// Whether another job follows it in a chain.
    pub(crate) fn is_followed(&self) -> bool {
        self.options.as_ref().is_some_and(|options| options.then.is_some())
    }

    pub(crate) fn has_derived_id(&self) -> bool {
        matches!(self.way, Way::Bare | Way::Forged(_))
    }
}

/// So many jobs that follow one another.
fn then(links: usize) -> Then {
    let job = (1..links).fold(r#"{"type":"t"}"#.to_owned(), |then, _| format!(r#"{{"type":"t","then":{then}}}"#));
    Then { job_type: JobType::parse("t").expect("a letter is a token"), job }
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
