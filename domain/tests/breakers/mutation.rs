//! Each mutation breaks a rule of the breakers on purpose: a simulation that lets one of them pass checks nothing.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A step whose answer was lost is done again.
    DoneTwice,
    /// A record is written though another write came first.
    WrittenBlindly,
    /// Attempts that began in another period count.
    StragglersCount,
    /// Any number of probes may start.
    ProbesWithoutLimit,
    /// A probe is never lost, though its holder died.
    ProbesNeverLost,
    /// The probes of a living holder are not renewed.
    ProbesNotRenewed,
    /// A node that stood still uses a probe that it has lost.
    LostProbeUsed,
    /// A probe that no job has used is kept.
    UnusedProbeKept,
    /// One success closes the breaker, however many probes must succeed.
    ClosedTooSoon,
    /// Of two versions of a record, the one that comes later is believed.
    OlderRecordBelieved,
    /// What a lost connection kept from a node is not read again.
    ChangesMissed,
    /// A breaker half-opens before it has cooled down.
    CooledDownTooSoon,
    /// A step is settled though nothing says that it was written.
    LostStepForgotten,
}

impl Mutation {
    pub(crate) const ALL: [Self; 13] = [
        Self::DoneTwice,
        Self::WrittenBlindly,
        Self::StragglersCount,
        Self::ProbesWithoutLimit,
        Self::ProbesNeverLost,
        Self::ProbesNotRenewed,
        Self::LostProbeUsed,
        Self::UnusedProbeKept,
        Self::ClosedTooSoon,
        Self::OlderRecordBelieved,
        Self::ChangesMissed,
        Self::CooledDownTooSoon,
        Self::LostStepForgotten,
    ];
}
