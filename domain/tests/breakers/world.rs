//! A world: its nodes, the store with the breaker's record, the network between them, and the service.

use std::time::Duration;

use longshore_chance::Chance;
use longshore_domain::breaker::record::{Breaker, BreakerKey, BreakerStep, By};
use longshore_domain::breaker::view::{Admission, Pass};
use longshore_domain::breaker::{BreakerPolicy, Signal};
use longshore_domain::{JobType, Tenant, Timestamp};

use crate::ledger::Ledger;
use crate::mutation::Mutation;
use crate::node::{Answer, Attempt, Node, Writing};
use crate::{POLICY_FAILURES, PROBES};

/// How long faults are played, and how long the world then has to come to rest.
const FAULTS_FOR: Duration = Duration::from_secs(120);
const RESTS_FOR: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(6);
/// Jobs that a node runs at once.
const SLOTS: usize = 3;
/// A node that stands still does so for up to twice a lease.
const FREEZE: i64 = 12_000;

/// How a world ended.
pub(crate) struct End {
    pub(crate) broken: Option<String>,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
}

struct World {
    chance: Chance,
    mutation: Option<Mutation>,
    policy: BreakerPolicy,
    now: Timestamp,
    nodes: Vec<Node>,
    /// The record and its revision.
    stored: Option<Breaker>,
    revision: u64,
    /// Writes that arrive late: nobody waits for their answer any more.
    late: Vec<Late>,
    works: bool,
    /// Faults happen.
    is_rough: bool,
    numbers: u64,
    started: u64,
    ledger: Ledger,
    verbose: bool,
}

struct Late {
    at: Timestamp,
    expected: u64,
    before: Breaker,
    after: Breaker,
    writer: longshore_domain::SmolStr,
    number: u64,
    step: BreakerStep,
}

/// Plays a world from its seed.
pub(crate) fn play(seed: u64, mutation: Option<Mutation>, verbose: bool) -> End {
    let chance = Chance::new(seed);
    let by_share = chance.hits(5_000);
    let policy = BreakerPolicy {
        failures: POLICY_FAILURES,
        // In half of the worlds every outcome is counted in a window as well, so that none can be lost unseen.
        ratio: by_share.then_some(1.0),
        min_calls: u32::MAX,
        window: Duration::from_secs(3_600),
        cool_down: Duration::from_millis(3_000),
        max_cool_down: Duration::from_millis(9_000),
        probes: PROBES,
        ..BreakerPolicy::default()
    };
    let mut world = World {
        chance,
        mutation,
        policy,
        now: Timestamp::from_millis(1_000_000),
        nodes: (0..3).map(|number| Node::new(format!("n{number}"))).collect(),
        stored: None,
        revision: 0,
        late: Vec::new(),
        works: true,
        is_rough: true,
        numbers: 0,
        started: 3,
        ledger: Ledger::default(),
        verbose,
    };
    world.run();
    End { broken: world.ledger.broken().cloned(), opened: world.ledger.opened, closed: world.ledger.closed }
}

impl World {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn run(&mut self) {
        let calm_at = self.now.plus(FAULTS_FOR);
        let end_at = calm_at.plus(RESTS_FOR);
        while self.now < end_at && self.ledger.broken().is_none() {
            self.now = self.now.plus(Duration::from_millis(self.chance.between(1, 40) as u64));
            if self.is_rough && self.now >= calm_at {
                self.calm();
            }
            if self.is_rough {
                self.fault();
            }
            self.arrive_late();
            for at in 0..self.nodes.len() {
                if self.nodes[at].frozen_until <= self.now {
                    self.act(at);
                }
            }
        }
        if self.ledger.broken().is_none() {
            self.judge_rest();
        }
    }

    /// From now on nothing fails, and only one node has jobs.
    fn calm(&mut self) {
        (self.is_rough, self.works) = (false, true);
        let busy = self.chance.pick(&[0, 1, 2]);
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.frozen_until = self.now;
            node.has_jobs = number == busy;
        }
    }

    fn judge_rest(&mut self) {
        if self.stored.as_ref().is_some_and(|breaker| !breaker.is_closed()) {
            let state = self.stored.as_ref().map(|breaker| breaker.state.clone());
            self.ledger.breaks(|| format!("the service works, and the breaker does not close: {state:?}"));
        }
        if let Some(breaker) = self.stored.clone().filter(|_| self.policy.ratio.is_some()) {
            let failures = breaker.totals(self.now, &self.policy).failures;
            self.ledger.counted(breaker.period, failures, false);
        }
    }

    fn fault(&mut self) {
        if self.chance.hits(30) {
            self.works = !self.works;
            self.say(|world| format!("the service works: {}", world.works));
        }
        let at = self.chance.below(3) as usize;
        if self.chance.hits(8) {
            self.started += 1;
            self.say(|world| format!("{} dies", world.nodes[at].name));
            self.nodes[at] = Node::new(format!("n{}", self.started));
        }
        if self.chance.hits(8) {
            self.freeze(at);
        }
        if self.chance.hits(30) {
            self.nodes[at].has_jobs = self.chance.hits(7_000);
        }
    }

    /// A node stands still. What it holds for longer than a lease may be another's then.
    fn freeze(&mut self, at: usize) {
        let until = self.now.plus(Duration::from_millis(self.chance.between(10, FREEZE) as u64));
        self.say(|world| format!("{} stands still until {until:?}", world.nodes[at].name));
        let node = &mut self.nodes[at];
        node.frozen_until = until;
        if until >= self.now.plus(LEASE / 4) {
            node.has_lost.extend(node.attempts.iter().filter_map(|attempt| attempt.pass.probe));
        }
    }

    fn say(&self, what: impl FnOnce(&Self) -> String) {
        if self.verbose {
            println!("{:>7} {}", self.now.millis() - 1_000_000, what(self));
        }
    }

    /// What a node does that is not frozen.
    fn act(&mut self, at: usize) {
        self.learn(at);
        self.end_attempts(at);
        self.write(at);
        self.renew_for_ever(at);
        if self.nodes[at].frozen_until <= self.now {
            self.start(at);
        }
    }

    /// Takes in the changes that have come.
    fn learn(&mut self, at: usize) {
        let (now, believes_older) = (self.now, self.is(Mutation::OlderRecordBelieved));
        let node = &mut self.nodes[at];
        while let Some(next) = node.changes.iter().position(|(comes_at, ..)| *comes_at <= now) {
            let (_, breaker, revision) = node.changes.swap_remove(next);
            if believes_older {
                node.view.learned_none();
            }
            node.view.learned(breaker, revision, &self.policy);
        }
        if node.reads_at.is_some_and(|reads_at| reads_at <= now)
            && !self.mutation.is_some_and(|it| it == Mutation::ChangesMissed)
        {
            node.reads_at = None;
            if let Some(breaker) = self.stored.clone() {
                node.view.learned(breaker, self.revision, &self.policy);
            }
        }
    }

    fn end_attempts(&mut self, at: usize) {
        let (now, stragglers) = (self.now, self.is(Mutation::StragglersCount));
        let node = &mut self.nodes[at];
        let (over, still): (Vec<Attempt>, Vec<Attempt>) =
            node.attempts.drain(..).partition(|attempt| attempt.ends_at <= now);
        node.attempts = still;
        for Attempt { pass, works, is_put_back, .. } in over {
            let signal = match (is_put_back, works) {
                (true, _) => Signal::Neutral,
                (false, true) => Signal::Success,
                (false, false) => Signal::Failure,
            };
            if signal == Signal::Failure && pass.probe.is_none() {
                self.ledger.failed(pass.period);
            }
            let period = node.view.known(now).map_or(0, |breaker| breaker.period);
            let pass = if stragglers && pass.probe.is_none() { Pass { period, ..pass } } else { pass };
            node.view.ended(pass, signal, now, &self.policy);
        }
    }

    fn start(&mut self, at: usize) {
        while self.nodes[at].has_jobs && self.nodes[at].attempts.len() < SLOTS {
            let (now, clock) = (self.now, self.clock(at));
            let Admission::Go(pass) = self.nodes[at].view.may_start(clock, &self.policy) else { return };
            let lasts = match self.chance.below(20) {
                0 => self.chance.between(2_000, 15_000),
                _ => self.chance.between(5, 400),
            };
            let ends_at = now.plus(Duration::from_millis(lasts as u64));
            let attempt = Attempt { pass, ends_at, works: self.works, is_put_back: self.chance.hits(500) };
            if let Some(number) = pass.probe {
                self.nodes[at].never_used.retain(|unused| *unused != number);
            }
            self.nodes[at].attempts.push(attempt);
            let alive = self.nodes.iter().map(|node| node.probes_of(pass.period)).sum();
            self.say(|world| format!("{} starts an attempt: {pass:?}", world.nodes[at].name));
            self.ledger.starts(now, pass, alive);
            let is_lost = |number| {
                let same = self.stored.as_ref().filter(|breaker| breaker.period == pass.period);
                same.is_some_and(|breaker| !breaker.has_probe(&self.nodes[at].name, number, now))
            };
            if pass.probe.is_some_and(is_lost) {
                self.ledger.breaks(|| format!("a job starts as probe {:?}, which was lost", pass.probe));
            }
        }
    }

    /// The time by which a node decides whether a job may start.
    fn clock(&self, at: usize) -> Timestamp {
        let (now, frozen_until) = (self.now, self.nodes[at].frozen_until);
        match self.mutation {
            Some(Mutation::CooledDownTooSoon) => now.plus(LEASE),
            // A node that does not look at the clock again after it stood still.
            Some(Mutation::LostProbeUsed) if now.since(frozen_until) < Duration::from_millis(200) => {
                frozen_until.minus(LEASE * 3)
            }
            _ => now,
        }
    }

    /// Takes the next step of a node's write.
    fn write(&mut self, at: usize) {
        let (now, clock, number) = (self.now, self.clock(at).max(self.now), self.numbers + 1);
        let node = &mut self.nodes[at];
        if node.writing.is_none()
            && let Some((number, step)) = node.view.next_step(clock, number, &self.policy, LEASE).cloned()
        {
            self.numbers = number;
            node.writing = Some((number, step, Writing::Judge));
        }
        let Some((number, step, writing)) = self.nodes[at].writing.take() else { return };
        let next = match writing {
            Writing::Judge => self.judge(at, number, &step),
            Writing::Sent { answer_at, .. } | Writing::Read { answer_at } if now < answer_at => Some(writing),
            Writing::Sent { answer: Some(Answer::Won(breaker, revision)), .. } => {
                self.nodes[at].view.learned(*breaker, revision, &self.policy);
                None
            }
            Writing::Sent { answer: None, .. } if self.is(Mutation::LostStepForgotten) => None,
            Writing::Sent { .. } => Some(Writing::Read { answer_at: now.plus(Duration::from_millis(5)) }),
            Writing::Read { .. } => {
                let view = &mut self.nodes[at].view;
                match self.stored.clone() {
                    Some(breaker) => drop(view.learned(breaker, self.revision, &self.policy)),
                    None => drop(view.learned_none()),
                }
                Some(Writing::Judge)
            }
        };
        match next {
            Some(writing) => self.nodes[at].writing = Some((number, step, writing)),
            None => self.settled(at, number, &step),
        }
    }

    fn settled(&mut self, at: usize, number: u64, step: &BreakerStep) {
        let node = &mut self.nodes[at];
        node.view.settled(self.now, &self.policy);
        match step {
            BreakerStep::Count { period, .. } => {
                self.ledger.settled(&node.name, number, *period, self.stored.as_ref());
            }
            BreakerStep::TakeProbe { .. } => {
                node.never_used.push(number);
                if self.is_rough && self.chance.hits(1_000) {
                    self.freeze(at);
                }
            }
            _ => {}
        }
    }

    /// What a node would do that keeps a probe which no job uses: it renews it.
    fn renew_for_ever(&mut self, at: usize) {
        let node = &self.nodes[at];
        let (Some(before), true) = (self.stored.clone(), node.keeps_probe && node.writing.is_none()) else { return };
        let (writer, number) = (node.name.clone(), self.numbers + 1);
        let by = By { writer: &writer, number, now: self.now, chance: 0.0, policy: &self.policy, lease: LEASE };
        if let Some(after) = before.after(&BreakerStep::RenewProbes, by) {
            self.numbers = number;
            let (at, expected) = (self.now, self.revision);
            self.apply(Late { at, expected, before, after, writer, number, step: BreakerStep::RenewProbes });
        }
    }

    /// Judges a step on the record that the node knows, and sends the result.
    fn judge(&mut self, at: usize, number: u64, step: &BreakerStep) -> Option<Writing> {
        let now = self.now;
        let node = &mut self.nodes[at];
        let (known, expected) = node.view.stored();
        let key = || BreakerKey { tenant: Tenant::default_tenant(), job_type: JobType::parse("t").unwrap(), key: None };
        let before = known.cloned().unwrap_or_else(|| Breaker::new(key(), now));
        let is = |mutation| self.mutation == Some(mutation);
        let writer = match step {
            BreakerStep::Count { .. } if is(Mutation::DoneTwice) => format!("{}-{now:?}", node.name).into(),
            _ => node.name.clone(),
        };
        let probes = match step {
            BreakerStep::TakeProbe { .. } if is(Mutation::ProbesWithoutLimit) => 100,
            BreakerStep::EndProbe { .. } if is(Mutation::ClosedTooSoon) => 1,
            _ => self.policy.probes,
        };
        let policy = BreakerPolicy { probes, ..self.policy };
        let lease = if is(Mutation::ProbesNeverLost) { LEASE * 10_000 } else { LEASE };
        let clock = match step {
            BreakerStep::TakeProbe { .. } if is(Mutation::CooledDownTooSoon) => now.plus(LEASE),
            _ => now,
        };
        let by = By { writer: &writer, number, now: clock, chance: self.chance.unit(), policy: &policy, lease };
        match step {
            BreakerStep::RenewProbes if is(Mutation::ProbesNotRenewed) => return None,
            BreakerStep::EndProbe { number, signal: Signal::Neutral }
                if is(Mutation::UnusedProbeKept) && node.never_used.contains(number) =>
            {
                node.keeps_probe = true;
                return None;
            }
            _ => {}
        }
        let after = before.after(step, by)?;
        let writer = node.name.clone();
        let late = Late { at: now, expected, before, after, writer, number, step: step.clone() };
        Some(self.send(late))
    }

    /// Sends a write: it may get lost, arrive late, or its answer may.
    fn send(&mut self, mut late: Late) -> Writing {
        let answer_at = self.now.plus(Duration::from_millis(self.chance.between(1, 60) as u64));
        let unclear = self.now.plus(Duration::from_millis(self.chance.between(100, 300) as u64));
        match if self.is_rough { self.chance.below(20) } else { 9 } {
            0 => Writing::Sent { answer_at: unclear, answer: None },
            1 => {
                late.at = self.now.plus(Duration::from_millis(self.chance.between(50, 600) as u64));
                self.late.push(late);
                Writing::Sent { answer_at: unclear, answer: None }
            }
            2 => {
                self.apply(late);
                Writing::Sent { answer_at: unclear, answer: None }
            }
            _ => {
                let answer = match self.apply(late) {
                    Some((breaker, revision)) => Answer::Won(Box::new(breaker), revision),
                    None => Answer::Lost,
                };
                Writing::Sent { answer_at, answer: Some(answer) }
            }
        }
    }

    fn arrive_late(&mut self) {
        while let Some(next) = self.late.iter().position(|late| late.at <= self.now) {
            let late = self.late.swap_remove(next);
            self.apply(late);
        }
    }

    /// The server's compare-and-set.
    fn apply(&mut self, late: Late) -> Option<(Breaker, u64)> {
        let Late { expected, before, after, writer, number, step, .. } = late;
        let current = if self.stored.is_some() { self.revision } else { 0 };
        if expected != current && !self.is(Mutation::WrittenBlindly) {
            return None;
        }
        self.revision += 1;
        self.stored = Some(after.clone());
        self.say(|_| format!("{writer} has written {step:?}: {:?} (was {:?})", after.state, before.state));
        self.ledger.written((&before, &after), (&writer, number), &step, self.now);
        if self.policy.ratio.is_some() && after.is_closed() {
            self.ledger.counted(after.period, after.totals(self.now, &self.policy).failures, false);
        }
        for at in 0..self.nodes.len() {
            if self.is_rough && self.chance.hits(300) {
                // Lost with the connection; the record is read once it is back.
                let back_at = self.now.plus(Duration::from_millis(self.chance.between(50, 400) as u64));
                self.nodes[at].reads_at = Some(back_at);
            } else {
                let comes_at = self.now.plus(Duration::from_millis(self.chance.between(1, 100) as u64));
                self.nodes[at].changes.push((comes_at, after.clone(), self.revision));
            }
        }
        Some((after, self.revision))
    }
}
