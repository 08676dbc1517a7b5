//! The protocol, broken on purpose in one place: a simulation that lets one of these pass checks nothing.

macro_rules! mutations {
    ($($name:ident),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Mutation {
            $($name),+
        }

        impl Mutation {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

mutations! {
    // Carrying out, in another order.
    AckBeforeEvents,
    ScheduleBeforeEvents,
    LetterBeforeEvents,
    AckBeforeSchedule,
    AckBeforeLetter,
    DueAckedBeforeItIsMoved,
    LetterDeletedBeforeTheJobIsPublished,
    ReplayPublishedBeforeItIsOnRecord,
    // Judging.
    DropInsteadOfCarryOut,
    CancelledDroppedUntold,
    PutBackBeginsAgainUntold,
    PutBackAckedWhenItComesAgain,
    UnreadableNeverCarriedOutAgain,
    CarriedOutWithoutTakingOver,
    TakenOverAndKeptInHand,
    AnyWaitOfAnAttemptSpeaksForIt,
    OldCountsBelievedAfterTheServerDied,
    RunOfALaneThatIsGoneTakenForThisOne,
    // Writing.
    ClaimOverwrites,
    EndOverwrites,
    LostEndIsAcked,
    ClaimIsTold,
    // Names.
    OneScheduleSubjectPerRun,
    MovedUnderTheSameIdAfterADeferral,
    LettersDeletedByRun,
    // The short way and the lease.
    ShortWayForNamedRuns,
    ShortWayAfterTheServerDied,
    LeaseClockFromReading,
    LostLeaseRevivedByALateAnswer,
    NoLookAtTheLeaseBeforeTheWork,
    HandedBackTwice,
    HandedBackPastTheLease,
    HandedBackAcrossServers,
    // Letters, and what intake left half done.
    ScheduledRunNeverScheduledAgain,
    ReplayNeverResumed,
    StaleLetterKept,
    StaleLetterDeletedUntold,
    // Cancelling.
    CancelledTakenOutBeforeItIsOnRecord,
    CancelledTakenOutUntold,
}
