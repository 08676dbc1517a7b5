//! The spans of a run, as a tracing system shows them: which there are, what each hangs from, when it was, and whether
//! it failed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use longshore_domain::follow_up::FollowUp;
use longshore_domain::run::{DeferReason, RunResult};
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, RunId, Tenant};

use super::*;
use crate::commit::{Commit, PublishedJob};
use crate::ports::encode::EncodedEvents;
use crate::trace::SpanExporter;

#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    fn samples(&self, _: TraceId, _: Option<bool>) -> bool {
        true
    }

    fn export(self: Arc<Self>, _: Vec<Span>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The spans that are taken meanwhile.
fn spans_of(take: impl FnOnce(&Tracer)) -> Vec<Span> {
    let tracer = Tracer::new(Arc::new(Nowhere), Arc::default());
    take(&tracer);
    let mut exporting = tracer.exporting.try_lock().unwrap();
    std::iter::from_fn(|| exporting.waiting.try_recv().ok()).collect()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + millis)
}

/// Its times, in milliseconds since the beginning of the test.
fn times(span: &Span) -> (i64, i64) {
    let millis = |at: SystemTime| i64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    (millis(span.start) - 1_000_000, millis(span.end) - 1_000_000)
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.as_str().into_owned())
}

fn job() -> Job {
    Job { tenant: Tenant::parse("acme").unwrap(), ..crate::tests::job("mail.send", "main-p5-7") }
}

/// Published at 0, and enqueued at once.
fn fresh() -> Run {
    Run::new(&job(), 3, at(0))
}

/// Its attempt `number` runs since `since`.
fn begun(mut run: Run, number: u32, since: i64) -> Run {
    run.begin(number, &"n1".into(), at(since));
    run
}

fn settled(mut run: Run, settlement: Settlement, when: i64) -> Run {
    run.settle(settlement, at(when));
    run
}

fn failure() -> Failure {
    Failure::new(ErrorKind::Timeout, "too slow")
}

/// Its first attempt ran from 10 to 30 and failed; the second is due at 100.
fn retrying() -> Run {
    settled(begun(fresh(), 1, 10), Settlement::Retry { at: at(100), failure: failure() }, 30)
}

/// Its only attempt ran from 10 to 30.
fn completed() -> Run {
    settled(begun(fresh(), 1, 10), Settlement::Complete(RunResult::None), 30)
}

/// A trace of the job's own, as its publisher sent no context.
fn own() -> JobTrace {
    let (id, parent) = (TraceId::from_bytes([1; 16]), SpanId::from_bytes([2; 8]));
    JobTrace { id, parent, is_sampled: true, is_own: true, state: None }
}

/// A trace that its publisher began.
fn publishers() -> JobTrace {
    JobTrace { is_own: false, state: Some("vendor=1".into()), ..own() }
}

fn commit(trace: &JobTrace, run: &Run) -> Commit {
    let payload = PublishedJob { headers: None, body: "12345".into(), trace: Some(trace.clone()) };
    Commit::with_events(Box::new(run.clone()), payload, EncodedEvents::default())
}

/// The spans of the end of the run's last attempt.
fn of_attempt(trace: &JobTrace, run: &Run) -> Vec<Span> {
    spans_of(|tracer| Commit { ends_attempt: true, ..commit(trace, run) }.trace(tracer))
}

/// The spans of a decision that ends no attempt.
fn of_wait(trace: &JobTrace, run: &Run) -> Vec<Span> {
    spans_of(|tracer| commit(trace, run).trace(tracer))
}

#[test]
fn a_job_whose_publisher_is_not_traced_has_its_publish_as_the_root() {
    let spans = of_attempt(&own(), &completed());
    assert_eq!(names(&spans), ["send main", "wait main", "process main"]);
    let [send, wait, process] = spans.try_into().unwrap();
    assert_eq!((send.id, send.parent, &send.kind), (own().parent, SpanId::INVALID, &SpanKind::Producer));
    assert_eq!((wait.parent, &wait.kind), (send.id, &SpanKind::Internal));
    assert_eq!((process.parent, &process.kind), (send.id, &SpanKind::Consumer));
    assert_eq!([times(&send), times(&wait), times(&process)], [(0, 0), (0, 10), (10, 30)]);
    assert!(!wait.parent_is_remote && wait.trace == own().id && wait.id != process.id);
}

#[test]
fn the_spans_of_a_job_hang_from_its_publishers_own() {
    let spans = of_attempt(&publishers(), &completed());
    assert_eq!(names(&spans), ["wait main", "process main"], "its publisher has written the root");
    for span in &spans {
        assert_eq!((span.parent, span.parent_is_remote), (publishers().parent, true));
        assert_eq!(span.state.get("vendor"), Some("1"), "what its tracing system added goes along");
    }
}

#[test]
fn a_trace_that_is_not_sampled_has_no_spans() {
    let (trace, run) = (JobTrace { is_sampled: false, ..own() }, completed());
    assert!(of_attempt(&trace, &run).is_empty());
    let expired = settled(fresh(), Settlement::Expire, 10);
    assert!(of_wait(&trace, &expired).is_empty());
    let others = spans_of(|tracer| {
        tracer.wait_ended(&trace, &settled(fresh(), Settlement::Cancel, 10));
        tracer.dead_letter(Some(trace.clone()), &run, at(9));
        tracer.dead_letter(None, &run, at(9));
        tracer.replayed(&trace, &run, at(0)..at(9));
        let submission = Submission { trace, above: None };
        tracer.submitted(&submission, &job(), Ok(("r", false)), at(0)..at(9));
    });
    assert!(others.is_empty());
}

#[test]
fn a_second_attempt_waits_from_the_end_of_the_first_and_the_root_is_written_once() {
    let second = settled(begun(retrying(), 2, 120), Settlement::Complete(RunResult::None), 150);
    let spans = of_attempt(&own(), &second);
    assert_eq!(names(&spans), ["retry wait main", "process main"]);
    assert_eq!([times(&spans[0]), times(&spans[1])], [(30, 120), (120, 150)]);
    assert_eq!(attribute(&spans[1], "longshore.attempt").as_deref(), Some("2"));
    let first = of_attempt(&own(), &retrying());
    assert!(first.iter().all(|span| spans.iter().all(|other| other.id != span.id)), "each has an id of its own");
}

#[test]
fn an_attempt_says_what_ran_where_and_with_which_end() {
    let spans = of_attempt(&own(), &retrying());
    let process = &spans[2];
    let expected = [
        ("messaging.system", "nats"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "main"),
        ("messaging.message.id", "main-p5-7"),
        ("messaging.message.body.size", "5"),
        ("messaging.client.id", "n1"),
        ("error.type", "timeout"),
        ("longshore.tenant", "acme"),
        ("longshore.type", "mail.send"),
        ("longshore.priority", "5"),
        ("longshore.round", "1"),
        ("longshore.attempt", "1"),
        ("longshore.max_attempts", "3"),
        ("longshore.state", "retrying"),
    ];
    for (name, value) in expected {
        assert_eq!(attribute(process, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(process.status, Status::error("too slow"));
    let ended = &of_attempt(&own(), &completed())[2];
    assert_eq!((&ended.status, attribute(ended, "error.type")), (&Status::Unset, None));
    assert_eq!(attribute(ended, "longshore.state").as_deref(), Some("completed"));
}

#[test]
fn an_attempt_that_was_put_back_says_so_and_its_next_start_is_another_span() {
    let table = [(PutBack::Released, "released"), (PutBack::Snoozed, "snoozed"), (PutBack::Busy, "busy")];
    for (put_back, word) in table {
        let defer = Settlement::Defer { at: at(90), reason: DeferReason::Busy, put_back: Some(put_back) };
        let run = settled(begun(fresh(), 1, 10), defer, 30);
        let first = of_attempt(&own(), &run);
        assert_eq!(attribute(&first[2], "longshore.state").as_deref(), Some(word));
        assert_eq!(first[2].status, Status::Unset, "it did not fail");
        let deferred = Deferred::of(&run);
        let again = settled(begun(run, 1, 95), Settlement::Complete(RunResult::None), 99);
        let commit = Commit { ends_attempt: true, deferred, ..commit(&own(), &again) };
        let spans = spans_of(|tracer| commit.trace(tracer));
        assert_eq!(names(&spans), ["wait main", "process main"], "the root was written before");
        assert_eq!(times(&spans[0]), (30, 95), "it waited since it was put back");
        assert_eq!(attribute(&spans[0], "longshore.deferred").as_deref(), Some("busy"));
        assert_ne!(spans[1].id, first[2].id);
    }
}

#[test]
fn a_run_that_leaves_before_its_first_attempt_names_its_root_then() {
    let scheduled = settled(fresh(), Settlement::Schedule(at(500)), 0);
    let leaving = Commit { follow_up: Some(FollowUp::Schedule(at(500))), ..commit(&own(), &scheduled) };
    let spans = spans_of(|tracer| leaving.trace(tracer));
    assert_eq!(names(&spans), ["send main"], "it takes its trace along, and no other node writes the root");
    let retry = Commit { follow_up: Some(FollowUp::Schedule(at(100))), ..commit(&own(), &retrying()) };
    assert!(spans_of(|tracer| retry.trace(tracer)).is_empty(), "its first attempt has written it");
}

#[test]
fn a_run_that_ends_while_it_waits_has_a_span_of_that_wait_alone() {
    let expired = of_wait(&own(), &settled(fresh(), Settlement::Expire, 40));
    assert_eq!(names(&expired), ["wait main"]);
    assert_eq!((times(&expired[0]), expired[0].parent), ((0, 40), SpanId::INVALID), "nobody has written a root");
    assert_eq!(expired[0].status, Status::error("expired before it was started"));
    assert_eq!(attribute(&expired[0], "longshore.state").as_deref(), Some("expired"));

    let duplicate = Settlement::Duplicate(RunId::parse("r1").unwrap());
    let duplicate = of_wait(&publishers(), &settled(fresh(), duplicate, 40));
    assert_eq!((duplicate[0].parent, &duplicate[0].status), (publishers().parent, &Status::Unset));

    let retry = of_wait(&own(), &settled(retrying(), Settlement::Expire, 110));
    assert_eq!(names(&retry), ["retry wait main"]);
    assert_eq!((times(&retry[0]), retry[0].parent), ((30, 110), own().parent));
}

#[test]
fn a_cancelled_run_has_a_last_wait_only_if_it_waited() {
    let cancelled = |run: Run| spans_of(|tracer| tracer.wait_ended(&own(), &settled(run, Settlement::Cancel, 50)));
    assert_eq!(names(&cancelled(fresh())), ["wait main"]);
    assert_eq!(names(&cancelled(retrying())), ["retry wait main"]);
    assert!(cancelled(begun(fresh(), 1, 10)).is_empty(), "its attempt ended with it, and has a span of its own");
}

#[test]
fn a_discarded_run_ended_before() {
    let mut run = settled(begun(fresh(), 1, 10), Settlement::Dead(failure()), 30);
    run.discard(at(90));
    assert!(of_wait(&own(), &run).is_empty());
}

#[test]
fn no_span_ends_before_it_begins_whatever_clocks_say() {
    // The node that ends the attempt is behind the one that stored the job.
    let run = settled(begun(fresh(), 1, -20), Settlement::Complete(RunResult::None), -30);
    for span in of_attempt(&own(), &run) {
        assert!(span.end >= span.start, "{span:?}");
    }
    let expired = of_wait(&own(), &settled(fresh(), Settlement::Expire, -5));
    assert_eq!(times(&expired[0]), (-5, -5));
}

#[test]
fn a_dead_letter_hangs_from_the_attempt_that_failed_last() {
    let dead = settled(begun(fresh(), 1, 10), Settlement::Dead(failure()), 30);
    let spans = spans_of(|tracer| tracer.dead_letter(Some(own()), &dead, at(35)));
    let [dead_letter] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((dead_letter.name.as_str(), &dead_letter.kind), ("send dead letters", &SpanKind::Producer));
    assert_eq!(dead_letter.parent, of_attempt(&own(), &dead)[2].id);
    assert_eq!(times(dead_letter), (30, 35));
    assert_eq!(attribute(dead_letter, "error.type").as_deref(), Some("timeout"));
    assert_eq!(attribute(dead_letter, "messaging.destination.name").as_deref(), Some("dead letters"));
}

#[test]
fn the_dead_letter_of_a_run_that_never_started_hangs_from_its_wait() {
    let dead = settled(fresh(), Settlement::Dead(Failure::new(ErrorKind::Invalid, "no type")), 30);
    let dead_letter = |trace: JobTrace| spans_of(|tracer| tracer.dead_letter(Some(trace), &dead, at(35))).remove(0);
    assert_eq!(dead_letter(own()).parent, of_wait(&own(), &dead)[0].id);
    assert_eq!(dead_letter(publishers()).parent, publishers().parent);
}

#[test]
fn a_replay_links_the_dead_letter_that_it_replays() {
    let mut run = settled(begun(fresh(), 1, 10), Settlement::Dead(failure()), 30);
    let dead_letter = spans_of(|tracer| tracer.dead_letter(Some(publishers()), &run, at(35))).remove(0);
    run.replay(at(90));
    let replay = spans_of(|tracer| tracer.replayed(&publishers(), &run, at(90)..at(95))).remove(0);
    assert_eq!((replay.name.as_str(), times(&replay)), ("replay main", (90, 95)));
    let link = replay.link.unwrap();
    assert_eq!((link.trace_id(), link.span_id()), (dead_letter.trace, dead_letter.id));
    assert_eq!(attribute(&dead_letter, "longshore.round").as_deref(), Some("1"));
}

#[test]
fn a_submission_says_which_run_it_made_or_why_it_was_refused() {
    let above = SpanId::from_bytes([9; 8]);
    let submit = |above, answer: Result<(&str, bool), &str>| {
        let submission = Submission { trace: publishers(), above };
        spans_of(|tracer| tracer.submitted(&submission, &job(), answer, at(0)..at(4))).remove(0)
    };
    let taken = submit(Some(above), Ok(("main-p5-7", true)));
    assert_eq!((taken.id, taken.parent, taken.parent_is_remote), (publishers().parent, above, true));
    assert_eq!((taken.name.as_str(), times(&taken), &taken.status), ("send main", (0, 4), &Status::Unset));
    assert_eq!(attribute(&taken, "longshore.run_id").as_deref(), Some("main-p5-7"));
    assert_eq!(attribute(&taken, "longshore.deduplicated").as_deref(), Some("true"));

    let refused = submit(None, Err("rate_limited"));
    assert_eq!((refused.parent, refused.parent_is_remote), (SpanId::INVALID, false));
    assert_eq!(refused.status, Status::error("rate_limited"));
    assert_eq!(attribute(&refused, "error.type").as_deref(), Some("rate_limited"));
    assert_eq!(attribute(&refused, "longshore.run_id"), None, "there is no run");
}
