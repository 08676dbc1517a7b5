//! Each mutation breaks the protocol on purpose in one place: a simulation that lets one of them pass checks nothing.

use crate::tests::simulation::world::Kind;

/// What a mutation does to a run, as the ledger names it.
#[derive(Debug, Clone, Copy)]
enum Harm {
    /// It, its dead letter or all of its key are gone, or it never ends.
    Lost,
    /// The log lacks events, or has them in another order.
    Log,
    /// The log gets events again that it is known to have.
    Again,
    /// Without any fault, events are live twice, or not at all.
    Live,
    /// Its record takes a step that there is not.
    Step,
    Early,
    /// It was started only to fail.
    Futile,
    Overwritten,
    CalledAfterItsEnd,
    Twice,
    TwoOfAKey,
    LeaseTaken,
    /// Without any fault, an attempt's lease ran out.
    LeaseLost,
    /// Its record goes away though its client was answered.
    Forgotten,
    Stuck,
    /// A filter means it, and it was left alone.
    PassedOver,
    /// It was cancelled, although the filter does not mean it, or nobody asked.
    Unmeant,
    /// More jobs of its key are at work than there are slots.
    OverSlots,
    /// It starts before a run that comes first in the order of its key.
    Overtakes,
    /// More jobs start than their rate allows.
    OverRate,
    /// It starts while its breaker is open.
    Unprotected,
    /// A slot that nobody uses does not come back.
    SlotKept,
    /// Its handlers had more jobs of a node than they take.
    OverCapacity,
}

impl Harm {
    /// One of these is part of the broken promise.
    fn texts(self) -> &'static [&'static str] {
        match self {
            Self::Lost => &[": lost as ", "no record: lost", ", dead letters of rounds", "no run of its key is left"],
            Self::Log => &[": logged ", ": round "],
            Self::Again => &[" published again, ", " published again without a fault"],
            Self::Live => &[": live "],
            Self::Step => &[" became "],
            Self::Early => &[" too early"],
            Self::Futile => &["started with too little time"],
            Self::Overwritten => &[": overwritten by another run"],
            Self::CalledAfterItsEnd => &["its handler was called after its end"],
            Self::Twice => &["two attempts at once"],
            Self::TwoOfAKey => &["another run of its key was called", "which still had it", "of its key has not ended"],
            Self::LeaseTaken => &["its lease was judged lost while its holder had it"],
            Self::LeaseLost => &["its lease was lost without any fault"],
            Self::Forgotten => &["its record goes away by itself"],
            Self::Stuck => &["stuck: "],
            Self::PassedOver => &["fits, and was left alone"],
            Self::Unmeant => &["does not fit, and was cancelled", "cancelled, though nobody asked"],
            Self::OverSlots => &["jobs of its key are at work, with"],
            Self::Overtakes => &["of its key, which comes first"],
            Self::Unprotected => &["though its breaker is open"],
            Self::OverRate => &["beyond their rate"],
            Self::SlotKept => &["wait, and none of them is at work"],
            Self::OverCapacity => &["though its handlers are full"],
        }
    }
}

macro_rules! mutations {
    ($($name:ident: $($harm:ident)|+),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Mutation {
            $($name),+
        }

        impl Mutation {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),+];

            fn harms(self) -> &'static [Harm] {
                match self {
                    $(Self::$name => &[$(Harm::$harm),+]),+
                }
            }
        }
    };
}

impl Mutation {
    /// In which worlds it shows soonest.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::OtherIdNotLookedUp | Self::RunOfALaneThatIsGoneTakenForThisOne => Kind::LanesMadeAnew,
            Self::AnyWaitOfAnAttemptSpeaksForIt => Kind::Waits,
            Self::HolderJudgedByALaterClock | Self::LeasesNotRenewed | Self::UnclearClaimNotWrittenAgain => {
                Kind::LongAttempts
            }
            Self::FastPathForJobsLongBuffered => Kind::ShortFreezes,
            Self::JobThatTakesAKeyOverTakenOut | Self::RepeatRunsAgainOnceTheRecordIsGone => Kind::Keys,
            Self::MadeWayWithoutConfirming => Kind::Replacing,
            Self::AckBeforeNextLink | Self::NextLinkNotRepeated => Kind::Chains,
            Self::ParkedJobsNotSearched | Self::SearchedOnce | Self::FilterNotKept => Kind::Filters,
            Self::SessionOfTheDeadNeverEnded
            | Self::SlotsOfTheDeadKeptForTheTimeLimit
            | Self::SessionEndedWhileItLasts
            | Self::WorkGoesOnWithoutItsSlots
            | Self::SlotUsedBeforeItIsConfirmed => Kind::Slots,
            Self::LaneNotReadForAnOrder
            | Self::ParkedNotReadForAnOrder
            | Self::OnlyTheLastOfABatchLookedAt
            | Self::JobThatNoNodeHasMetTakenForEnded
            | Self::NextInOrderNotTakenBack => Kind::Ordered,
            Self::TokensUsedAfterTheirLease | Self::TokensOfALostWriteUsed | Self::LimitOverwritten => Kind::Limited,
            Self::BreakersOfOthersNotHeard | Self::ProbeOfTheDeadKept => Kind::Breaks,
            _ => Kind::Mixed,
        }
    }

    /// Whether a promise was broken for the reason that the mutation stands for.
    pub(crate) fn is_shown_by(self, broken: &str) -> bool {
        self.harms().iter().flat_map(|harm| harm.texts()).any(|text| broken.contains(text))
    }
}

mutations! {
    // The steps of carrying out, in another order.
    AckBeforeEvents: Lost | Log,
    ScheduleBeforeEvents: Log,
    LetterBeforeEvents: Log,
    AckBeforeSchedule: Lost,
    AckBeforeLetter: Lost,
    AckBeforeNextLink: Lost,
    LogNotWaitedFor: Lost | Log,
    NothingSentAgain: Lost | Stuck,
    AnswersToADeadCommitterHeard: Lost | Log | Step,
    BatchInFlightForgotten: Log,
    DueAckedBeforeItIsMoved: Lost,
    OverdueScheduleDeletedBeforeItIsMoved: Lost,
    ParkedJobDeletedBeforeItIsTakenBack: Lost,
    LetterDeletedBeforeTheJobIsPublished: Lost,
    ReplayPublishedBeforeItIsOnRecord: Log,
    // Judging.
    DropInsteadOfCarryOut: Lost | Log,
    NextLinkNotRepeated: Lost,
    CancelledDroppedUnpublished: Log,
    PutBackBeginsAgainUnpublished: Log,
    PutBackAckedWhenItComesAgain: Lost,
    CarriedOutWithoutTakingOver: Lost,
    TakenOverAndHeldLocally: Lost,
    AnyWaitOfAnAttemptSpeaksForIt: Early | Log,
    TooLittleTimeNotSeen: Futile,
    ReschedulingNotSeen: Early,
    RescheduledRecordNotMarkedPublished: Forgotten,
    RunOfALaneThatIsGoneTakenForThisOne: Lost,
    RunOfALaneThatIsGoneOverwritten: Overwritten,
    OtherIdNotLookedUp: CalledAfterItsEnd,
    StaleRecordTakenForTheNewest: Lost,
    RecordsReadFromAnyReplica: Lost,
    ReplicaDecides: Lost,
    WrongSealBelieved: Lost,
    // Publishing.
    NotedRunTakenForPublished: Log,
    ClaimedRunPublishedLiveAgain: Live,
    ArrivalTakenForNoProof: Again,
    NoRoomMadeForTheStart: Log,
    NoRoomMadeForTheNextWait: Log,
    RedeliveredRunTakenForPublished: Log,
    WholeRoundPublishedAgain: Again,
    FirstAttemptTakenForProof: Log,
    LastStartTakenForProven: Log,
    OwnClaimTakenForPublished: Log,
    HeldRetryTakenForRedelivered: Again,
    CancelPublishedAlone: Log,
    CancelledRunTakenForUnseen: Live,
    CancelledRunTakenForSeen: Live,
    AnyWaitingRunTakenForCarriedOn: Log,
    EndOfTheCancelledNotNoted: Again,
    DeadLetterTakenForPublished: Log,
    DeadLetterPublishedLiveAgain: Live,
    StartLoggedBeforeItsRecord: Log,
    // Writing.
    ClaimOverwrites: Step,
    EndOverwrites: Step,
    LostEndIsAcked: Lost,
    ClaimIsPublished: Live | Log,
    // Names.
    OneScheduleSubjectPerRun: Lost,
    MovedUnderTheSameIdAfterADeferral: Lost,
    MovedUnderTheSameIdAfterARescheduling: Lost,
    LettersDeletedByRun: Lost,
    // The fast path and the lease.
    FastPathForNamedRuns: CalledAfterItsEnd,
    FastPathForKeyedRuns: TwoOfAKey,
    FastPathAfterTheServerDied: CalledAfterItsEnd,
    FastPathForJobsLongBuffered: CalledAfterItsEnd,
    FastPathForCancelledRuns: CalledAfterItsEnd,
    LeaseClockFromReading: CalledAfterItsEnd,
    NoLookAtTheLeaseBeforeTheWork: Twice,
    LeasesNotRenewed: LeaseLost,
    EndedWithoutTheLease: Unmeant,
    LeaseJudgedByCount: LeaseTaken,
    HolderJudgedByALaterClock: LeaseTaken,
    SilentHolderTakenForDead: LeaseTaken,
    UnclearClaimNotWrittenAgain: LeaseTaken,
    // Intake and keys.
    SubmittedUnsealed: Lost,
    RecordNeverMarkedPublished: Forgotten,
    NotedRunNeverPublishedAgain: Forgotten,
    ScheduledRunNeverScheduledAgain: Forgotten,
    RepeatRunsAgainOnceTheRecordIsGone: Log | CalledAfterItsEnd,
    UnpublishedClaimNeverTakenOver: Lost,
    PublishedClaimTakenOver: TwoOfAKey,
    OwnClaimNotMarkedBeforeItsRunBegins: TwoOfAKey,
    KeyOfALiveRunTaken: TwoOfAKey,
    KeyClaimedBeforeItsRecord: TwoOfAKey,
    ReplayedRunBelievedToHaveItsKey: TwoOfAKey,
    ReplacedRunKept: TwoOfAKey,
    MadeWayWithoutConfirming: Lost,
    MadeWayDroppedUnpublished: Log,
    JobThatTakesAKeyOverTakenOut: Log,
    // Dead letters.
    ReplayNeverResumed: Lost,
    StaleLetterKept: Stuck,
    StaleLetterDeletedUnpublished: Log,
    // Cancelling.
    CancelledTakenOutBeforeItIsOnRecord: Lost,
    CancelledTakenOutUnpublished: Log,
    CancelNotNoted: CalledAfterItsEnd,
    CancelsNotLearnedAtStart: CalledAfterItsEnd,
    NodesNotWaitedFor: CalledAfterItsEnd,
    ParkedJobsNotSearched: PassedOver,
    SearchedOnce: PassedOver,
    FilterNotKept: Unmeant,
    // From the lanes to a worker, and back.
    BufferedJobsAckedAtDrain: Lost,
    WorkersNotIdleAgain: Stuck,
    FullHandlersNotSeen: OverCapacity,
    ParkedJobsNeverWantedBack: Stuck,
    SweepNeverBeginsAgain: Stuck,
    // Concurrency keys.
    SessionOfTheDeadNeverEnded: SlotKept,
    SlotsOfTheDeadKeptForTheTimeLimit: SlotKept,
    SessionEndedWhileItLasts: OverSlots,
    WorkGoesOnWithoutItsSlots: OverSlots,
    SlotUsedBeforeItIsConfirmed: OverSlots,
    // Their order.
    LaneNotReadForAnOrder: Overtakes,
    ParkedNotReadForAnOrder: Overtakes | SlotKept | Stuck,
    OnlyTheLastOfABatchLookedAt: Overtakes,
    JobThatNoNodeHasMetTakenForEnded: Overtakes,
    NextInOrderNotTakenBack: SlotKept | Stuck,
    // Rate limits.
    TokensUsedAfterTheirLease: OverRate,
    TokensOfALostWriteUsed: OverRate,
    LimitOverwritten: OverRate,
    // Circuit breakers.
    BreakersOfOthersNotHeard: Unprotected,
    ProbeOfTheDeadKept: Stuck,
}
