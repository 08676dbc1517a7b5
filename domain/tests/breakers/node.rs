//! A node of a world: it runs attempts and writes its steps, as the actor `circuit-breaker` does.

use longshore_domain::breaker::record::{Breaker, BreakerStep};
use longshore_domain::breaker::view::{Pass, View};
use longshore_domain::{SmolStr, Timestamp};

/// An attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) pass: Pass,
    pub(crate) ends_at: Timestamp,
    /// Whether its service worked when it was called.
    pub(crate) works: bool,
    /// Its job is put back, which says nothing.
    pub(crate) is_put_back: bool,
}

/// How far the write of a step is.
#[derive(Debug, Clone)]
pub(crate) enum Writing {
    /// It is to be judged on the newest record.
    Judge,
    /// It was sent, and the answer comes at this time; `None`: no answer comes.
    Sent { answer_at: Timestamp, answer: Option<Answer> },
    /// The record is being read.
    Read { answer_at: Timestamp },
}

/// The server's answer to a write.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Won(Box<Breaker>, u64),
    Lost,
}

pub(crate) struct Node {
    pub(crate) name: SmolStr,
    pub(crate) view: View,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) writing: Option<(u64, BreakerStep, Writing)>,
    /// Versions of the record that are on their way to it.
    pub(crate) changes: Vec<(Timestamp, Breaker, u64)>,
    /// It reads the record at this time, because its connection was lost.
    pub(crate) reads_at: Option<Timestamp>,
    pub(crate) frozen_until: Timestamp,
    /// It stood still for longer than a lease: what it held before may be another's.
    pub(crate) has_lost: Vec<u64>,
    /// Whether it has jobs to start.
    pub(crate) has_jobs: bool,
    /// Probes that it took and that no job has used yet.
    pub(crate) never_used: Vec<u64>,
    /// It does not give such a probe back.
    pub(crate) keeps_probe: bool,
}

impl Node {
    pub(crate) fn new(name: String) -> Self {
        let name = SmolStr::from(name);
        Self {
            view: View::new(name.clone()),
            name,
            attempts: Vec::new(),
            writing: None,
            changes: Vec::new(),
            reads_at: Some(Timestamp::default()),
            frozen_until: Timestamp::default(),
            has_lost: Vec::new(),
            has_jobs: true,
            never_used: Vec::new(),
            keeps_probe: false,
        }
    }

    /// How many of its attempts are probes of this period that no other node can have replaced.
    pub(crate) fn probes_of(&self, period: i64) -> usize {
        let own = |attempt: &&Attempt| {
            attempt.pass.period == period && attempt.pass.probe.is_some_and(|number| !self.has_lost.contains(&number))
        };
        self.attempts.iter().filter(own).count()
    }
}
