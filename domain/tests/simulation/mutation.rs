//! Each mutation breaks the protocol on purpose in one place: a simulation that lets one of them pass checks nothing.

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
    // The steps of carrying out, in another order.
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
    CarriedOutWithoutTakingOver,
    TakenOverAndHeldLocally,
    AnyWaitOfAnAttemptSpeaksForIt,
    RunOfALaneThatIsGoneTakenForThisOne,
    RunOfALaneThatIsGoneOverwritten,
    OtherIdNotLookedUp,
    StaleRecordTakenForTheNewest,
    RecordsReadFromAnyReplica,
    WrongSealBelieved,
    // Publishing.
    NotedRunTakenForPublished,
    ClaimedRunPublishedLiveAgain,
    ArrivalTakenForNoProof,
    NoRoomMadeForTheStart,
    NoRoomMadeForTheNextWait,
    RedeliveredRunTakenForPublished,
    WholeRoundPublishedAgain,
    FirstAttemptTakenForProof,
    LastStartTakenForProven,
    OwnClaimTakenForPublished,
    HeldRetryTakenForRedelivered,
    CancelPublishedAlone,
    CancelledRunTakenForUnseen,
    CancelledRunTakenForSeen,
    AnyWaitingRunTakenForCarriedOn,
    DeadLetterTakenForPublished,
    DeadLetterPublishedLiveAgain,
    StartLoggedBeforeItsRecord,
    // Writing.
    ClaimOverwrites,
    EndOverwrites,
    LostEndIsAcked,
    ClaimIsTold,
    // Names.
    OneScheduleSubjectPerRun,
    MovedUnderTheSameIdAfterADeferral,
    LettersDeletedByRun,
    // The fast path and the lease.
    FastPathForNamedRuns,
    FastPathForKeyedRuns,
    FastPathAfterTheServerDied,
    FastPathForJobsLongBuffered,
    LeaseClockFromReading,
    NoLookAtTheLeaseBeforeTheWork,
    LeaseJudgedByCount,
    HolderJudgedByALaterClock,
    SilentHolderTakenForDead,
    UnclearClaimNotWrittenAgain,
    // Intake and keys.
    SubmittedUnsealed,
    RecordNeverMarkedPublished,
    NotedRunNeverPublishedAgain,
    ScheduledRunNeverScheduledAgain,
    RepeatRunsAgainOnceTheRecordIsGone,
    UnpublishedClaimNeverTakenOver,
    PublishedClaimTakenOver,
    OwnClaimNotMarkedBeforeItsRunBegins,
    // Dead letters.
    ReplayNeverResumed,
    StaleLetterKept,
    StaleLetterDeletedUntold,
    // Cancelling.
    CancelledTakenOutBeforeItIsOnRecord,
    CancelledTakenOutUntold,
    CancelNotNoted,
    CancelsNotLearnedAtStart,
    NodesNotWaitedFor,
}
