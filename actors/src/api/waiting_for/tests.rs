//! What a person reads who asks why a run does not start.

use std::sync::Arc;

use longshore_backbone::served_types::Remembered;
use longshore_backbone::wire::subject::Names;
use longshore_domain::breaker::record::Cause;
use longshore_domain::policy::Policies;
use longshore_domain::run::PutBack;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Job, JobType, Tenant};

use super::*;
use crate::Handlers;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn of_id(id: &str) -> Run {
    let job = Job { tenant: Tenant::parse("acme").unwrap(), ..crate::tests::job("mail.send", id) };
    Run::new(&job, 3, at(0))
}

fn fresh() -> Run {
    of_id("main-p5-7")
}

fn running() -> Run {
    let mut run = fresh();
    run.begin(1, &"n1".into(), at(1));
    run
}

fn settled(mut run: Run, settlement: Settlement) -> Run {
    run.settle(settlement, at(5));
    run
}

fn deferred(run: Run, reason: DeferReason, put_back: Option<PutBack>) -> Run {
    settled(run, Settlement::Defer { at: at(9), reason, put_back })
}

fn says(reason: &str, message: &str) -> Recorded {
    Recorded::Says(WaitingFor { reason: reason.to_owned(), message: message.to_owned() })
}

#[test]
fn a_run_that_waits_for_a_time_says_which_and_for_which_attempt() {
    let scheduled = settled(fresh(), Settlement::Schedule(at(60)));
    assert_eq!(by_record(&scheduled, at(8)), says("schedule", "waits for its time, 1970-01-01T00:01:00.000Z"));
    assert_eq!(by_record(&scheduled, at(60)), Recorded::Waits, "it is due, and waits in its lane");
    let failed = Settlement::Retry { at: at(60), failure: Failure::new(ErrorKind::Retryable, "no") };
    let retrying = settled(running(), failed);
    assert_eq!(by_record(&retrying, at(8)), says("retry", "waits for its attempt 2, at 1970-01-01T00:01:00.000Z"));
    assert_eq!(by_record(&retrying, at(60)), Recorded::Waits, "its back-off is over: that is not what it waits for");
}

#[test]
fn a_run_that_was_put_off_says_for_what_also_between_two_attempts() {
    let put_off = |reason| Recorded::PutOff(reason, at(9));
    let before_its_start = deferred(fresh(), DeferReason::RateLimited, None);
    assert_eq!(by_record(&before_its_start, at(8)), put_off(DeferReason::RateLimited));
    let snoozed = deferred(running(), DeferReason::Snoozed, Some(PutBack::Snoozed));
    assert_eq!(by_record(&snoozed, at(8)), put_off(DeferReason::Snoozed));

    let failed = Settlement::Retry { at: at(6), failure: Failure::new(ErrorKind::Retryable, "no") };
    let retrying = settled(running(), failed);
    let paused = deferred(retrying, DeferReason::Paused, None);
    assert_eq!(
        by_record(&paused, at(8)),
        put_off(DeferReason::Paused),
        "its back-off is over: that is not what it waits for"
    );
}

#[test]
fn a_run_in_its_lane_or_parked_waits_for_what_the_cluster_says_and_others_for_nothing() {
    assert_eq!(by_record(&fresh(), at(8)), Recorded::Waits);
    let parked = settled(fresh(), Settlement::Park { since: at(2), reason: Some(DeferReason::Busy) });
    assert_eq!(by_record(&parked, at(8)), Recorded::Waits);
    assert_eq!(by_record(&running(), at(8)), Recorded::Nothing);
    for end in [Settlement::Cancel, Settlement::Expire] {
        assert_eq!(by_record(&settled(fresh(), end), at(8)), Recorded::Nothing);
    }
}

fn lane(messages: u64, delivered: u64) -> LaneBacklog {
    LaneBacklog { messages, delivered, oldest: None, oldest_undelivered: None }
}

#[test]
fn a_run_in_its_lane_says_how_many_jobs_are_before_it() {
    // Its own sequence is 7.
    let table = [
        (lane(1, 6), "a worker of the queue main: it is next in its lane (priority 5)"),
        (lane(2, 5), "a worker of the queue main, behind 1 job of its lane (priority 5)"),
        (lane(4, 3), "a worker of the queue main, behind 3 jobs of its lane (priority 5)"),
        // Jobs between that have ended, out of order, are not before it any more.
        (lane(2, 0), "a worker of the queue main, behind 2 jobs of its lane (priority 5)"),
        // A node has it already.
        (lane(2, 9), "a worker of the queue main: it is next in its lane (priority 5)"),
    ];
    for (lane, what) in table {
        assert_eq!(behind(&fresh(), &lane), Some(said(Reason::Worker, what.to_owned())), "{lane:?}");
    }
    assert_eq!(behind(&fresh(), &lane(0, 7)), None, "nothing is in its lane: it has just gone on");
}

#[test]
fn a_run_whose_place_is_not_known_says_what_it_is_at_most() {
    let own = of_id("order-7");
    let at_most = "a worker of the queue main, behind at most 4 jobs of its lane (priority 5)";
    assert_eq!(behind(&own, &lane(5, 0)), Some(said(Reason::Worker, at_most.to_owned())));
    // Once a node has met its message, the record says where it stands.
    let message = longshore_domain::run::MessageId { stream: "L".into(), sequence: 3, at: at(0) };
    let held_by = Some(longshore_domain::run::Holding { message, delivery: 1 });
    let known = "a worker of the queue main, behind 2 jobs of its lane (priority 5)";
    assert_eq!(behind(&Run { held_by, ..own }, &lane(5, 0)), Some(said(Reason::Worker, known.to_owned())));
    let due = settled(fresh(), Settlement::Schedule(at(60)));
    assert_eq!(behind(&due, &lane(5, 0)), Some(said(Reason::Worker, at_most.to_owned())), "it came there later");
}

#[test]
fn a_deferral_says_when_the_job_is_looked_at_again_if_that_is_known() {
    for reason in DeferReason::ALL {
        let (timed, untimed) = (for_reason(&fresh(), reason, Some(at(60))), for_reason(&fresh(), reason, None));
        assert_eq!((timed.reason.as_str(), untimed.reason.as_str()), (reason.as_str(), reason.as_str()));
        assert_eq!(timed.message, format!("{}, next at 1970-01-01T00:01:00.000Z", untimed.message));
    }
    let message = |reason| for_reason(&fresh(), reason, None).message;
    assert_eq!(message(DeferReason::Busy), "waits for a handler of mail.send with room");
    assert_eq!(message(DeferReason::Held), "waits for the end of a hold: a handler holds mail.send or its key");
}

#[test]
fn a_breaker_is_waited_for_unless_it_is_closed() {
    let of = |state: &Circuit, now| in_words(state, &fresh(), at(now)).map(|found| found.message);
    let open = Circuit::Open { until: at(60), times: 1, cause: Cause::Failures, failures: 5 };
    let waits = "waits for the breaker of mail.send, open until 1970-01-01T00:01:00.000Z";
    assert_eq!(of(&open, 59).as_deref(), Some(waits));
    let tries = "waits for the breaker of mail.send, which lets a few jobs try";
    assert_eq!(of(&open, 60).as_deref(), Some(tries), "it has cooled down");
    let half_open = Circuit::HalfOpen { times: 1, successes: 0, probes: Vec::new(), failures: 5 };
    assert_eq!(of(&half_open, 0).as_deref(), Some(tries));
    assert_eq!(of(&Circuit::Closed { failures: 4, window: Default::default() }, 0), None);
}

#[test]
fn a_pause_says_what_is_paused_and_when_it_ends_by_itself() {
    let pause = |until| paused("queue main", Pause { since: at(0), until });
    assert_eq!(pause(None), said(DeferReason::Paused, "the end of a pause: its queue main is paused".to_owned()));
    let until = "waits for the end of a pause: its queue main is paused until 1970-01-01T00:01:00.000Z";
    assert_eq!(pause(Some(at(60))).message, until);
}

#[test]
fn a_run_in_the_order_of_its_key_names_the_run_before_it_and_how_that_stands() {
    let first = RunId::parse("r1").unwrap();
    let message = |before: Option<&Run>| its_turn(&first, before).message;
    let waits = "waits for its turn in the order of its key: run r1 comes first and has not ended (running on node n1)";
    assert_eq!(message(Some(&running())), waits);
    assert!(message(None).ends_with("(waits in its lane)"), "it has no record yet");
}

#[test]
fn a_run_without_a_handler_says_since_when_and_where_its_handlers_are_to_subscribe() {
    let missing_since = |tenant: &str, job_type: &str, since| MissingHandler {
        tenant: Tenant::parse(tenant).unwrap(),
        job_type: JobType::parse(job_type).unwrap(),
        since: at(since),
        looked_at: at(90),
    };
    let node = |missing_handlers| Presence {
        node: "n1".to_owned(),
        version: String::new(),
        started_at: at(0),
        seen_at: at(90),
        state: "running".to_owned(),
        queues: Default::default(),
        running_of: Default::default(),
        missing_handlers,
    };
    let nodes = [
        node(vec![missing_since("other", "mail.send", 1), missing_since("acme", "mail", 2)]),
        node(vec![missing_since("acme", "mail.send", 40)]),
        node(vec![missing_since("acme", "mail.send", 30)]),
    ];
    let since = missing(&nodes, &fresh()).map(|missing| missing.since);
    assert_eq!(
        since,
        Some(at(30)),
        "the node that has found none for longest; neither another tenant's nor another type's"
    );
    assert!(missing(&nodes[..1], &fresh()).is_none());

    let (names, policies) = (Names::new("longshore"), Arc::<Policies>::default());
    let routing = Routing::new(policies, Handlers::new(), names.clone(), Arc::default());
    let said = no_handler(&routing, &fresh(), at(60));
    assert_eq!(said.reason, "no_handler_online");
    assert!(said.message.contains("a handler of mail.send: none online since 1970-01-01T00:01:00.000Z"), "{said:?}");
    let run = fresh();
    let subject = names.work(&run.tenant, &run.job_type);
    assert!(said.message.ends_with(&subject), "{said:?}");

    routing.served.take_in(vec![Remembered::CompleteFrom(at(0))], 1);
    routing.served.saw(&JobType::parse("mail.sent").unwrap());
    let said = no_handler(&routing, &run, at(60)).message;
    let none = ".000Z (none was ever online, did you mean mail.sent?); handlers subscribe to ";
    assert!(said.contains(none) && said.ends_with(&subject), "{said}");
}

/// Each reason is a row of the table that says who ends the wait, and the table has no others.
#[test]
fn the_internals_say_of_every_reason_who_ends_the_wait() {
    // A new reason does not compile here until it is one of these, too.
    let is_listed = |reason: &Reason| match reason {
        Reason::Schedule | Reason::Retry | Reason::Worker => true,
        Reason::QueueUnserved | Reason::Stranded | Reason::PutOff(_) => true,
    };
    let own = [Reason::Schedule, Reason::Retry, Reason::Worker, Reason::QueueUnserved, Reason::Stranded];
    let all = own.into_iter().chain(DeferReason::ALL.map(Reason::PutOff)).filter(is_listed);
    let mut reasons: Vec<&str> = all.map(Reason::as_str).collect();
    let page = include_str!("../../../../docs/internals/waiting.md");
    let in_table = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut documented: Vec<&str> = in_table.map(|(reason, _)| reason).collect();
    reasons.sort_unstable();
    documented.sort_unstable();
    assert_eq!(documented, reasons, "left: the table of docs/internals/waiting.md, right: the code");
}
