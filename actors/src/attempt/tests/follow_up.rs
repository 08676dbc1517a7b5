//! What is written after a commit's events, in which order, and what the failure of one step leads to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_backbone::Headers;
use longshore_backbone::claims::Claim;
use longshore_backbone::fingerprint::Fingerprint;
use longshore_backbone::wire::header::then;

use longshore_domain::follow_up::{FollowUp, plan};
use longshore_domain::job::Unique;
use longshore_domain::publication::Published;
use longshore_domain::run::{DeferReason, RunResult};
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, JobType, Run, Timestamp};
use tokio::sync::oneshot;

use super::begin::{Scene, after, held_by, retrying};
use super::done;
use super::node::read_event;
use super::server::{Fault, RUN, SEQUENCE, at, id};
use crate::attempt::assignment::Assignment;
use crate::commit::follow_up::{self, Done};
use crate::commit::{AfterCommit, Commit, InFlightPermit, PublishedJob, chain, keys};
use crate::ports::RunPorts as _;
use futures_util::FutureExt as _;

impl Scene {
    /// The commit of this run, of which the follow-up is next.
    fn published(&mut self, run: Run) -> Box<Commit> {
        let Assignment { ack_token, arrival, .. } = *self.claim();
        let follow_up = plan(&run);
        let published = Published::held_locally(&run);
        let mut commit = Commit::of_stored(Box::new(run), PublishedJob::default(), published, self.node.author());
        (commit.follow_up, commit.arrival, commit.after) = (follow_up, Some(arrival), AfterCommit::Ack(ack_token));
        Box::new(commit)
    }

    /// The commit of this run, whose record could not be written on revision `expected`.
    fn refused(&mut self, run: Run, expected: u64) -> Box<Commit> {
        let Assignment { ack_token, arrival, .. } = *self.claim();
        let author = self.node.author();
        let mut commit =
            Commit::to_write(Box::new(run), PublishedJob::default(), expected, Published::nothing(), author);
        (commit.arrival, commit.after) = (Some(arrival), AfterCommit::Ack(ack_token));
        Box::new(commit)
    }

    /// The steps after the events; false: the node died over one of them.
    fn follows(&self, commit: Box<Commit>) -> bool {
        follow_up::follow(&*self.server, commit).now_or_never().is_some()
    }

    fn clears_up(&self, commit: Box<Commit>) -> Done {
        done(follow_up::clear_up(&*self.server, &self.node.metrics, commit))
    }

    /// A run that failed for good and has to give its key back.
    fn dead_with_a_key(&mut self) -> Run {
        let run = Run { unique_key: Some("k".into()), ..dead(self.running()) };
        let (run_id, fingerprint) = (run.run_id.clone(), Fingerprint::of("t", None, b"{}"));
        let claim = Claim { run_id, fingerprint, unique: Unique::Active, published: true, taken_from: Vec::new() };
        self.server.has_claim("k", claim);
        self.server.has_record(run.clone());
        run
    }
}

fn dead(run: Run) -> Run {
    after(run, Settlement::Dead(Failure::new(ErrorKind::Permanent, "no")))
}

fn completed(run: Run) -> Run {
    after(run, Settlement::Complete(RunResult::None))
}

fn parked(run: Run) -> Run {
    after(run, Settlement::Park { since: at(0), reason: Some(DeferReason::RateLimited) })
}

#[test]
fn the_run_s_next_message_comes_before_the_acknowledgement() {
    type Row = (fn(Run) -> Run, &'static [&'static str]);
    let rows: [Row; 4] = [
        (completed, &["ack 7"]),
        (|run| retrying(run, at(60_000)), &["schedule 1/2 in 60000 ms", "ack 7"]),
        (parked, &["park 1/1 in 0 ms", "ack 7"]),
        (dead, &["dead letter", "ack 7"]),
    ];
    for (make, expected) in rows {
        let mut scene = Scene::new();
        let run = make(scene.running());
        let commit = scene.published(run);
        assert_eq!(follow_up::is_needed(&commit), expected.len() > 1, "{expected:?}");
        assert!(scene.follows(commit));
        assert_eq!(scene.node.sent(), expected);
    }
}

/// Given a run of an id that was used before, when the run is still recorded that followed the earlier one, then the
/// next one takes its place once it has ended; until then it stays.
#[test]
fn what_followed_an_earlier_run_of_the_id_makes_way_once_it_has_ended() {
    for has_ended in [true, false] {
        let mut scene = Scene::new();
        let other =
            Run { run_id: id("main-p5-7-then"), parent: Some(id(RUN)), origin: at(-100_000), ..scene.running() };
        scene.server.has_record(if has_ended { completed(other) } else { other });
        let run = Run { then: Some(JobType::parse("t").unwrap()), ..completed(scene.running()) };
        let mut headers = Headers::new();
        headers.insert(then::NAME, r#"{"type":"t"}"#);
        let payload = PublishedJob { headers: Some(Arc::new(headers)), ..PublishedJob::default() };
        scene.node.policies.default_type.keep = Some(Duration::from_secs(60));
        let next = chain::next(&scene.node, &run, &payload).unwrap();
        scene.node.sent();
        done(chain::publish(&*scene.server, &next)).unwrap();
        let record = "record of main-p5-7-then enqueued 1/0".to_owned();
        let published = vec![record.clone(), "next main-p5-7-then: ".to_owned(), record];
        assert_eq!(scene.node.sent(), if has_ended { published } else { vec![] });
        let kept = scene.server.run("main-p5-7-then").keep_ms;
        assert_eq!(kept, has_ended.then_some(60_000), "as its type asks");
    }
}

#[test]
fn an_ended_run_gives_its_key_back_between_its_dead_letter_and_the_acknowledgement() {
    let mut scene = Scene::new();
    let run = scene.dead_with_a_key();
    let commit = scene.published(run);
    assert!(scene.follows(commit));
    assert_eq!(scene.node.sent(), ["dead letter", "claim k for main-p5-7, given back", "ack 7"]);
}

#[test]
fn a_key_is_reason_enough_for_a_follow_up_once_the_run_has_ended() {
    let mut scene = Scene::new();
    let keyed = |run: Run| Run { unique_key: Some("k".into()), ..run };
    let (ended, waits) = (keyed(completed(scene.running())), keyed(parked(scene.running())));
    assert_eq!((keys::key_given_back(&ended), keys::key_given_back(&waits)), (Some("k"), None));
    assert!(follow_up::is_needed(&scene.published(ended)));
}

#[test]
fn a_step_that_is_not_confirmed_is_repeated_before_the_next_one() {
    // Calls: the dead letter; the claim and its record are read, the claim is written; the acknowledgement.
    let steps = ["dead letter", "claim k for main-p5-7, given back", "ack 7"];
    for call in 0..4 {
        for fault in [Fault::Lost, Fault::AnswerLost] {
            let mut scene = Scene::new();
            let run = scene.dead_with_a_key();
            let commit = scene.published(run);
            scene.server.breaks(call, fault);
            assert!(scene.follows(commit));
            let mut sent = scene.node.sent();
            let has_repeated = sent.len() > steps.len();
            sent.dedup();
            assert_eq!(sent, steps, "call {call}, {fault:?}");
            assert_eq!(scene.server.pauses.get(), 1, "call {call}, {fault:?}: it waits before it tries again");
            let is_write = call == 0 || call == 3;
            assert_eq!(has_repeated, is_write && fault == Fault::AnswerLost, "call {call}, {fault:?}");
        }
    }
}

/// Given a full stream, when it refuses a step of a commit, then the step is repeated; with half of the places in
/// flight taken, the job comes again for it later instead, so that other jobs go on.
#[test]
fn what_a_full_stream_refuses_is_put_off_once_half_of_the_places_are_taken() {
    let ends = |others: usize, delivery: u64, call: u32| {
        let mut scene = Scene::new();
        let run = scene.dead_with_a_key();
        let mut commit = scene.published(run);
        let in_flight = Arc::new(AtomicUsize::new(others));
        commit.in_flight = Some(InFlightPermit::taken(&in_flight));
        commit.arrival.as_mut().unwrap().holding.delivery = delivery;
        scene.server.breaks(call, Fault::Full);
        assert!(scene.follows(commit));
        assert_eq!(in_flight.load(Ordering::Relaxed), others, "its place is free");
        scene.node.sent()
    };
    assert_eq!(ends(2_047, 1, 0), ["dead letter", "claim k for main-p5-7, given back", "ack 7"]);
    assert_eq!(ends(2_048, 1, 0), ["nak 7 after 1000 ms"]);
    assert_eq!(ends(2_048, 4, 0), ["nak 7 after 8000 ms"], "later each time");
    assert_eq!(ends(2_048, 99, 0), ["nak 7 after 30000 ms"], "before its record may be gone");
    assert_eq!(ends(2_048, 1, 3), ["dead letter", "nak 7 after 1000 ms"], "its key is still to be given back");
}

#[test]
fn an_acknowledgement_is_not_repeated() {
    let mut scene = Scene::new();
    let run = completed(scene.running());
    let commit = scene.published(run);
    scene.server.breaks(0, Fault::Lost);
    assert!(scene.follows(commit));
    assert!(scene.server.is_broken() && scene.node.sent().is_empty());
    assert_eq!(scene.server.lane.borrow().len(), 1, "its message comes again, and finds the record");
}

#[test]
fn a_node_that_dies_over_a_step_takes_none_after_it() {
    let steps = ["dead letter", "claim k for main-p5-7, given back", "ack 7"];
    for (call, taken) in [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2)] {
        for fault in [Fault::DiesBefore, Fault::DiesAfter] {
            let mut scene = Scene::new();
            let run = scene.dead_with_a_key();
            let commit = scene.published(run);
            scene.server.breaks(call, fault);
            assert!(!scene.follows(commit));
            let is_write = matches!(call, 0 | 3 | 4);
            let taken = taken + usize::from(is_write && fault == Fault::DiesAfter);
            assert_eq!(scene.server.take_noted(), steps[..taken], "call {call}, {fault:?}");
        }
    }
}

#[test]
fn the_delivery_ends_as_the_commit_says() {
    let mut scene = Scene::new();
    let end = |scene: &mut Scene, after: fn(Box<Commit>) -> Box<Commit>| {
        let run = completed(scene.running());
        let commit = scene.published(run);
        done(follow_up::end(&*scene.server, after(commit)));
        scene.node.sent()
    };
    let returned = |mut commit: Box<Commit>| {
        let after = std::mem::replace(&mut commit.after, AfterCommit::Nothing);
        commit.after = AfterCommit::Return(after.into_ack_token().unwrap());
        commit
    };
    assert_eq!(end(&mut scene, returned), ["nak 7"]);
    let nothing = |mut commit: Box<Commit>| {
        std::mem::replace(&mut commit.after, AfterCommit::Nothing).into_ack_token().unwrap().abandon();
        commit
    };
    assert_eq!(end(&mut scene, nothing), [""; 0]);
}

#[test]
fn those_that_wait_for_a_commit_learn_the_revision_of_its_record() {
    let mut scene = Scene::new();
    let run = completed(scene.running());
    let mut commit = scene.refused(run.clone(), 0);
    commit.written(41);
    let ack_token = std::mem::replace(&mut commit.after, AfterCommit::Nothing).into_ack_token().unwrap();
    let (done_at, mut reported) = oneshot::channel();
    commit.after = AfterCommit::Report(done_at);
    done(follow_up::end(&*scene.server, commit));
    assert_eq!(reported.try_recv(), Ok(41));
    let mut commit = scene.refused(run, 0);
    commit.written(42);
    std::mem::replace(&mut commit.after, AfterCommit::Nothing).into_ack_token().unwrap().abandon();
    let (give, back) = oneshot::channel();
    commit.after = AfterCommit::LocalRetry(ack_token, give);
    done(follow_up::end(&*scene.server, commit));
    let (ack_token, revision) = done(back).unwrap();
    assert_eq!((revision, scene.node.sent()), (42, vec![]));
    ack_token.abandon();
    // The task that waited is gone.
    let run = completed(scene.running());
    let mut commit = scene.published(run);
    let ack_token = std::mem::replace(&mut commit.after, AfterCommit::Nothing).into_ack_token().unwrap();
    commit.after = AfterCommit::LocalRetry(ack_token, oneshot::channel().0);
    done(follow_up::end(&*scene.server, commit));
    assert_eq!(scene.node.sent(), ["nak 7"]);
}

#[test]
fn a_refused_record_is_written_once_nothing_speaks_against_it() {
    let is_stored = |scene: &Scene, cleared: Done| match cleared {
        Done::OnRecord(commit) => {
            let revision = commit.write.as_ref().unwrap().expected;
            commit.after.into_ack_token().unwrap().abandon();
            assert!(revision > 0 && scene.server.last_run().token == commit.run.token);
        }
        Done::Over => panic!("it is given up"),
    };
    // This very write was stored, and its answer was lost.
    let mut scene = Scene::new();
    let run = Run { token: "wn1-9".into(), ..completed(scene.running()) };
    scene.server.has_record(run.clone());
    let commit = scene.refused(run.clone(), 0);
    let cleared = scene.clears_up(commit);
    is_stored(&scene, cleared);
    assert_eq!(scene.node.sent(), [""; 0], "nothing is written twice");
    // The record that it was based on is gone.
    let mut scene = Scene::new();
    let commit = scene.refused(run.clone(), 55);
    let cleared = scene.clears_up(commit);
    is_stored(&scene, cleared);
    // An earlier write of the same attempt was stored, and its answer was lost.
    let mut scene = Scene::new();
    let running = Run { token: "wn1-8".into(), ..scene.running() };
    scene.server.has_record(running);
    let mut commit = scene.refused(run.clone(), 0);
    commit.unclear = Some("wn1-8".into());
    let cleared = scene.clears_up(commit);
    is_stored(&scene, cleared);
    // Nobody answers at first.
    let mut scene = Scene::new();
    let commit = scene.refused(run, 0);
    scene.server.breaks(0, Fault::Lost);
    let cleared = scene.clears_up(commit);
    is_stored(&scene, cleared);
    assert_eq!(scene.server.pauses.get(), 1);
}

#[test]
fn the_result_of_a_run_that_went_on_elsewhere_is_dropped() {
    // Under another message, which answers for the run now; or under this one, on another node.
    type Row = (fn(&mut Run, Timestamp), &'static [&'static str]);
    let rows: [Row; 2] = [(|run, _| run.held_by = Some(held_by(SEQUENCE + 1)), &["ack 7"]), (|_, _| {}, &[])];
    for (change, expected) in rows {
        let mut scene = Scene::new();
        let mut run = scene.running();
        let mine = completed(run.clone());
        run.token = "another-1".into();
        change(&mut run, at(0));
        scene.server.has_record(run);
        let commit = scene.refused(mine, 3);
        assert!(matches!(scene.clears_up(commit), Done::Over));
        assert_eq!(scene.node.sent(), expected, "its delivery is never returned");
        assert_eq!(scene.node.metrics.fenced.get(), 1);
        assert_eq!(scene.server.run(RUN).token, "another-1");
    }
}

#[test]
fn a_run_that_was_cancelled_before_its_end_was_written_is_published_as_cancelled() {
    let mut scene = Scene::new();
    let run = scene.running();
    let cancelled = after(run.clone(), Settlement::Cancel);
    scene.server.has_record(Run { token: "another-1".into(), ..cancelled });
    let mut commit = scene.refused(completed(run), 3);
    commit.follow_up = Some(FollowUp::DeadLetter);
    let Done::OnRecord(end) = scene.clears_up(commit) else { panic!("its end has to be published") };
    assert_eq!((end.run.state.as_str(), end.follow_up), ("cancelled", None));
    let mut lines = end.lines.log().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    assert_eq!(lines.next_back().map(|line| read_event(line).0).as_deref(), Some("cancelled"));
    assert!(follow_up::is_needed(&end) && scene.follows(end));
    assert_eq!(scene.node.sent(), ["ack 7", "forget steps of main-p5-7"], "its record lists none of its last attempt");
}
