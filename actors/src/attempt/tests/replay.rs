//! Dead letters that are replayed or discarded: what may be, in which order it is done, and that a repeat finishes what
//! a node that died has begun.

use bytes::Bytes;
use futures_util::FutureExt as _;
use longshore_backbone::claims::Claim;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::poison::HEADERS_BASE64;
use longshore_backbone::wire::header;
use longshore_backbone::{Error, Headers};
use longshore_domain::job::Unique;
use longshore_domain::policy::TypePolicy;
use longshore_domain::run::Step;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, JobOptions, Priority, Queue, Run, RunState, Tenant};

use super::begin::Scene;
use super::done;
use super::keys::claim;
use super::node::Node;
use super::server::{Fault, RUN, at, id};
use crate::api::dead_letter::{self, Action, ReplayChange};
use crate::ports::DeadLetterPorts;

impl DeadLetterPorts for Node {
    async fn move_to_lane(&self, run: &Run, headers: Headers, payload: Bytes, id: &str) -> Result<bool, Error> {
        let headers: Vec<&str> = headers.iter().map(|(name, _)| name.as_ref()).filter(|name| is_own(name)).collect();
        let place = format!("{} p{}", run.queue, run.priority.number());
        let text = String::from_utf8_lossy(&payload).into_owned();
        self.server.call(|| self.server.note(format!("publish {id} into {place}: {text} {headers:?}"))).await?;
        Ok(true)
    }

    async fn remove_dead_letter(&self, sequence: u64) -> Result<(), Error> {
        self.server.call(|| self.server.note(format!("remove letter {sequence}"))).await
    }
}

/// Whether a header is the client's, or one of its options.
fn is_own(name: &str) -> bool {
    header::is_clients(name) || ["Longshore-Max-Attempts", "Longshore-Then"].contains(&name)
}

/// The run has died of this, with its record.
fn dead(scene: &mut Scene, failure: Failure) -> StoredDeadLetter {
    let mut run = Run { seal: "5ea1".into(), ..scene.running() };
    run.settle(Settlement::Dead(failure), at(500));
    scene.server.has_record(run.clone());
    let headers = Headers::new();
    StoredDeadLetter { sequence: 3, run, headers, payload: Bytes::from_static(b"{}"), left_out: None }
}

fn failed(scene: &mut Scene) -> StoredDeadLetter {
    dead(scene, Failure::new(ErrorKind::Permanent, "no such address"))
}

fn as_it_is() -> Action {
    Action::Replay(ReplayChange::default())
}

fn act(scene: &Scene, dead_letter: &StoredDeadLetter, action: &Action) -> Result<bool, String> {
    done(dead_letter::one(&scene.node, dead_letter.clone(), action))
}

const PUBLISHED: &str = "publish default/main-p5-7/5ea1/2/1/0 into main p5: {} []";

#[test]
fn a_replay_begins_the_next_round_in_the_record_then_publishes_then_removes() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Ok(true));
    let sent = scene.node.sent();
    assert_eq!(sent.first().map(String::as_str), Some("record enqueued 2/0"), "{sent:?}");
    assert_eq!(sent[sent.len() - 2..], [PUBLISHED, "remove letter 3"]);
    assert!(sent.iter().any(|line| line.starts_with("log ") && line.contains("replayed")), "{sent:?}");
    let run = scene.server.last_run();
    assert_eq!((run.round, run.attempts.len()), (2, 1), "what it did before is kept");
}

#[test]
fn a_discarded_run_is_published_as_such_and_nothing_runs() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    assert_eq!(act(&scene, &dead_letter, &Action::Discard), Ok(true));
    let sent = scene.node.sent();
    assert_eq!((sent[0].as_str(), sent.last().unwrap().as_str()), ("record discarded 1/1", "remove letter 3"));
    assert!(sent.iter().any(|line| line.starts_with("log ") && line.ends_with("discarded")), "{sent:?}");
    assert!(!sent.iter().any(|line| line.starts_with("publish ")), "{sent:?}");
}

#[test]
fn a_discarded_run_leaves_no_results_of_steps() {
    let mut scene = Scene::new();
    let mut dead_letter = failed(&mut scene);
    dead_letter.run.list_step(Step { name: "charge".into(), n: 1, at: at(5), attempt: 1 });
    scene.server.has_record(dead_letter.run.clone());
    assert_eq!(act(&scene, &dead_letter, &Action::Discard), Ok(true));
    let sent = scene.node.sent();
    assert_eq!(sent[sent.len() - 2..], ["forget steps of main-p5-7", "remove letter 3"]);
}

#[test]
fn a_replay_that_is_repeated_after_any_fault_runs_once_more_and_leaves_no_letter() {
    let mut calls = 0;
    'calls: for call in 0..20 {
        for fault in [Fault::Lost, Fault::AnswerLost, Fault::DiesBefore, Fault::DiesAfter] {
            let mut scene = Scene::new();
            let dead_letter = failed(&mut scene);
            scene.server.breaks(call, fault);
            let first = dead_letter::one(&scene.node, dead_letter.clone(), &as_it_is()).now_or_never();
            if !scene.server.is_broken() {
                break 'calls;
            }
            let place = format!("{fault:?} at call {call}: {first:?}");
            if !matches!(first, Some(Ok(_))) {
                act(&scene, &dead_letter, &as_it_is()).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            let (run, sent) = (scene.server.last_run(), scene.node.sent());
            assert_eq!((run.round, run.state.name()), (2, RunState::Enqueued), "{place}");
            // Twice under one id is once: the server knows the id.
            let published: Vec<_> = sent.iter().filter(|line| line.starts_with("publish ")).collect();
            assert!(!published.is_empty() && published.iter().all(|line| *line == PUBLISHED), "{place}: {sent:?}");
            assert_eq!(sent.last().unwrap(), "remove letter 3", "{place}");
        }
        calls += 1;
    }
    assert!(calls >= 4, "a fault at each of its calls: {calls}");
}

#[test]
fn a_discarding_that_is_repeated_after_any_fault_leaves_no_letter_and_is_in_the_log_once() {
    for call in 0..4 {
        for fault in [Fault::Lost, Fault::AnswerLost, Fault::DiesBefore, Fault::DiesAfter] {
            let mut scene = Scene::new();
            let dead_letter = failed(&mut scene);
            scene.server.breaks(call, fault);
            let first = dead_letter::one(&scene.node, dead_letter.clone(), &Action::Discard).now_or_never();
            assert!(scene.server.is_broken(), "call {call} is made");
            let place = format!("{fault:?} at call {call}: {first:?}");
            if !matches!(first, Some(Ok(_))) {
                act(&scene, &dead_letter, &Action::Discard).unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            assert_eq!(scene.server.last_run().state.name(), RunState::Discarded, "{place}");
            let log = scene.server.log.borrow();
            assert_eq!(log.iter().filter(|id| id.ends_with("discarded")).count(), 1, "{place}: {log:?}");
            assert_eq!(scene.node.sent().last().unwrap(), "remove letter 3", "{place}");
        }
    }
}

#[test]
fn a_letter_whose_run_has_gone_on_is_only_tidied_up() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    scene.server.changes(RUN, |run| {
        run.replay(at(600));
        run.begin(1, &"n2".into(), at(700));
    });
    assert_eq!(done(dead_letter::would(&scene.node, &dead_letter, &as_it_is())), Ok(false));
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Ok(false), "it was replayed before");
    assert_eq!(scene.node.sent(), ["remove letter 3"]);
}

#[test]
fn a_letter_that_was_discarded_too_late_is_replayed() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    // The node that replayed it died before it published the job.
    scene.server.changes(RUN, |run| run.replay(at(600)));
    let error = act(&scene, &dead_letter, &Action::Discard).unwrap_err();
    assert_eq!(error, "is being replayed: it was discarded too late");
    let sent = scene.node.sent();
    assert_eq!(sent[sent.len() - 2..], [PUBLISHED, "remove letter 3"]);
}

#[test]
fn a_letter_whose_id_is_another_runs_by_now_can_only_be_discarded() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    scene.server.changes(RUN, |run| run.origin = at(900));
    let refused = "its id is another run's by now, as its lane was made anew; publish its job anew and discard this";
    assert_eq!(done(dead_letter::would(&scene.node, &dead_letter, &as_it_is())), Err(refused.to_owned()));
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Err(refused.to_owned()));
    assert!(scene.node.sent().is_empty());
    assert_eq!(act(&scene, &dead_letter, &Action::Discard), Ok(true));
    assert_eq!(scene.node.sent(), ["remove letter 3"], "the other run is left alone");
}

#[test]
fn a_record_that_does_not_know_of_the_end_yet_is_waited_for() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    scene.server.changes(RUN, |run| run.state = longshore_domain::State::Running);
    let error = act(&scene, &dead_letter, &Action::Discard).unwrap_err();
    assert_eq!(error, "the record does not know of its end yet; try again");
    assert!(scene.node.sent().is_empty());
    assert_eq!(scene.node.metrics.stale_reads.get(), 1);
}

#[test]
fn the_run_of_a_letter_whose_record_is_gone_goes_on_from_the_letter() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    scene.server.loses_record(RUN);
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Ok(true));
    assert_eq!(scene.server.last_run().round, 2);
}

#[test]
fn what_would_be_done_is_said_and_nothing_is_done() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    assert_eq!(done(dead_letter::would(&scene.node, &dead_letter, &as_it_is())), Ok(true));
    assert_eq!(done(dead_letter::would(&scene.node, &dead_letter, &Action::Discard)), Ok(true));
    assert!(scene.node.sent().is_empty());
}

#[test]
fn a_replay_may_change_queue_priority_payload_headers_and_options() {
    let mut scene = Scene::new();
    let mut dead_letter = failed(&mut scene);
    dead_letter.headers.insert("X-Old", "1");
    dead_letter.headers.insert("X-Kept", "1");
    let options = JobOptions { max_attempts: Some(9), tags: vec!["again".to_owned()], ..JobOptions::default() };
    let change = ReplayChange {
        queue: Some(Queue::parse("mail").unwrap()),
        priority: Some(Priority::new(1).unwrap()),
        payload: Some(Bytes::from_static(b"[1]")),
        headers: vec![("x-old".to_owned(), None), ("Longshore-Max-Attempts".to_owned(), Some("9".to_owned()))],
        options: Some(Box::new(options)),
    };
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(change)), Ok(true));
    let sent = scene.node.sent();
    let published = sent.iter().find(|line| line.starts_with("publish ")).unwrap();
    assert!(published.contains(" into mail p1: [1] "), "{published}");
    assert!(published.contains("X-Kept") && published.contains("Longshore-Max-Attempts"), "{published}");
    assert!(!published.contains("X-Old"), "a header is left out in whatever case it is named: {published}");
    let run = scene.server.last_run();
    assert_eq!((run.queue.as_str(), run.priority.number(), run.max_attempts), ("mail", 1, 9));
    assert_eq!(run.tags, ["again"]);
}

fn replay_error(scene: &Scene, dead_letter: &StoredDeadLetter, change: ReplayChange) -> String {
    let error = act(scene, dead_letter, &Action::Replay(change)).unwrap_err();
    assert!(scene.node.sent().is_empty(), "nothing is done: {error}");
    error
}

fn with_header(name: &str, value: Option<&str>) -> ReplayChange {
    ReplayChange { headers: vec![(name.to_owned(), value.map(str::to_owned))], ..ReplayChange::default() }
}

#[test]
fn a_payload_that_was_too_large_to_be_kept_has_to_be_given() {
    let mut scene = Scene::new();
    let dead_letter = StoredDeadLetter { left_out: Some(900_000), payload: Bytes::new(), ..failed(&mut scene) };
    let error = replay_error(&scene, &dead_letter, ReplayChange::default());
    assert_eq!(error, "its payload of 900000 bytes was too large to be kept; replay it with set.payload");
    let given = ReplayChange { payload: Some(Bytes::from_static(b"1")), ..ReplayChange::default() };
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(given)), Ok(true));
}

#[test]
fn an_invalid_job_is_replayed_only_once_it_is_mended() {
    let mut scene = Scene::new();
    let mut dead_letter = dead(&mut scene, Failure::new(ErrorKind::Invalid, "Longshore-Max-Attempts: is zero"));
    dead_letter.headers.insert("Longshore-Max-Attempts", "0");
    let as_it_was = replay_error(&scene, &dead_letter, ReplayChange::default());
    let message = "it is invalid (Longshore-Max-Attempts: is zero); mend it with set.headers or set.payload";
    assert_eq!(as_it_was, message);
    let error = replay_error(&scene, &dead_letter, with_header("Longshore-Max-Attempts", Some("none")));
    assert!(error.starts_with("it is still invalid: "), "{error}");
    let mended = with_header("Longshore-Max-Attempts", Some("2"));
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(mended)), Ok(true));
}

#[test]
fn headers_that_cannot_be_read_are_not_dropped_unasked() {
    let mut scene = Scene::new();
    let mut dead_letter = dead(&mut scene, Failure::new(ErrorKind::Invalid, "its headers cannot be read"));
    dead_letter.headers.insert(HEADERS_BASE64, "AA==");
    let error = replay_error(&scene, &dead_letter, ReplayChange::default());
    assert!(error.ends_with("leaves out the headers that cannot be read") && error.contains(HEADERS_BASE64), "{error}");
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(with_header(HEADERS_BASE64, None))), Ok(true));
}

#[test]
fn a_job_whose_subject_could_not_be_read_has_no_lane_to_go_back_to() {
    let mut scene = Scene::new();
    let mut dead_letter = failed(&mut scene);
    dead_letter.run.tenant = Tenant::unreadable();
    let error = replay_error(&scene, &dead_letter, ReplayChange::default());
    assert_eq!(error, "the subject it was published to could not be read; publish it anew");
}

#[test]
fn a_job_that_the_settings_refused_is_replayed_once_they_take_it() {
    let mut scene = Scene::new();
    let reason = "payload: has 2 bytes, 1 are allowed for its type (payload_max)";
    let dead_letter = dead(&mut scene, Failure::new(ErrorKind::Invalid, reason));
    scene.node.policies.default_type = TypePolicy { payload_max: Some(1), ..TypePolicy::default() };
    assert_eq!(replay_error(&scene, &dead_letter, ReplayChange::default()), format!("it is still refused: {reason}"));
    scene.node.policies.default_type.payload_max = Some(2);
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Ok(true));
}

#[test]
fn a_new_payload_has_to_be_one_that_the_settings_take() {
    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    scene.node.policies.default_type = TypePolicy { payload_max: Some(2), ..TypePolicy::default() };
    let larger = ReplayChange { payload: Some(Bytes::from_static(b"123")), ..ReplayChange::default() };
    assert!(replay_error(&scene, &dead_letter, larger).contains("(payload_max)"));
    scene.node.policies.default_type.payload_max = Some(1);
    assert_eq!(act(&scene, &dead_letter, &as_it_is()), Ok(true), "what was taken once is taken again");
}

#[test]
fn a_run_whose_key_another_run_has_by_now_is_not_replayed() {
    // Its end has freed its key; or it died before it claimed that.
    for (unique, name) in [(Unique::Active, "active"), (Unique::Window, "window")] {
        let mut scene = Scene::new();
        let mut dead_letter = failed(&mut scene);
        dead_letter.headers.insert("Longshore-Idempotency-Key", "k");
        dead_letter.headers.insert("Longshore-Unique", name);
        let other = Run { run_id: id("r1"), ..scene.running() };
        scene.server.has_record(other);
        scene.server.has_claim("k", Claim { unique, ..claim("r1", true, &[]) });
        let error = replay_error(&scene, &dead_letter, ReplayChange::default());
        assert_eq!(error, "its idempotency key belongs to run r1 by now: replay it once the key is free");
        assert_eq!(act(&scene, &dead_letter, &Action::Discard), Ok(true), "it needs no key for that");
    }
}

#[test]
fn a_mended_job_has_the_options_of_its_headers_and_what_follows_any_other_stays() {
    let mut scene = Scene::new();
    let mut dead_letter = dead(&mut scene, Failure::new(ErrorKind::Invalid, "Longshore-Tag: is reserved"));
    let headers = [
        ("Longshore-Tag", "a"),
        ("Longshore-Tags", "night"),
        ("Longshore-Max-Attempts", "2"),
        ("Longshore-Keep", "1h"),
        ("Longshore-Then", r#"{"type":"next"}"#),
    ];
    headers.into_iter().for_each(|(name, value)| dead_letter.headers.insert(name, value));
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(with_header("Longshore-Tag", None))), Ok(true));
    let run = scene.server.last_run();
    assert_eq!((run.max_attempts, run.keep_ms, &run.tags[..]), (2, Some(3_600_000), &["night".to_owned()][..]));
    assert_eq!(run.then.unwrap().as_str(), "next");

    let mut scene = Scene::new();
    let dead_letter = failed(&mut scene);
    let change = with_header("Longshore-Then", Some(r#"{"type":"next"}"#));
    assert_eq!(act(&scene, &dead_letter, &Action::Replay(change)), Ok(true));
    assert!(scene.node.sent().contains(&PUBLISHED.to_owned()), "without what would follow");
    assert!(scene.server.last_run().then.is_none());
}
