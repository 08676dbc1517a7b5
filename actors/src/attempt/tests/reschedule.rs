//! Runs that are to start at another time: the record decides, and the schedule follows it.

use longshore_backbone::wire::api::ApiError;
use longshore_domain::run::{DeferReason, PutBack};
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Priority, Queue, Run, Tenant, Timestamp};

use super::begin::{Scene, after, retrying};
use super::done;
use super::server::{Fault, RUN, at, id};
use crate::api::reschedule::{self, Change};
use crate::ports::Server as _;

/// How the run stands before it is rescheduled.
type Stands = fn(&mut Scene) -> Run;

fn to(run_at: Timestamp) -> Change {
    Change { run_at: Some(run_at), ..Change::default() }
}

/// A run that waits for its time, with its schedule.
fn waits(scene: &mut Scene, run: impl FnOnce(&mut Scene) -> Run) {
    let run = run(scene);
    let at = run.state.run_at().unwrap();
    scene.server.has_record(run.clone());
    done(scene.server.schedule(&run, at, None, bytes::Bytes::new())).unwrap();
    scene.node.sent();
}

fn scheduled(scene: &mut Scene) -> Run {
    let run = Run { published: true, seal: "5ea1".into(), ..scene.fresh() };
    after(run, Settlement::Schedule(at(60_000)))
}

fn reschedule(scene: &Scene, change: &Change) -> Result<Run, ApiError> {
    done(reschedule::one(&scene.node, &Tenant::default_tenant(), &id(RUN), change))
}

fn snoozed(scene: &mut Scene) -> Run {
    let put_back = Some(PutBack::Snoozed);
    let run = Run { seal: "5ea1".into(), ..scene.running() };
    after(run, Settlement::Defer { at: at(60_000), reason: DeferReason::Snoozed, put_back })
}

#[test]
fn a_run_that_waits_for_its_time_its_retry_or_the_end_of_a_snooze_starts_at_the_new_one() {
    let waits_for: [Stands; 3] = [scheduled, |scene| retrying(scene.running(), at(60_000)), snoozed];
    for run in waits_for {
        let mut scene = Scene::new();
        waits(&mut scene, run);
        let before = scene.server.last_run();
        let run = reschedule(&scene, &to(at(5_000))).unwrap();
        assert_eq!((run.state.run_at(), run.state.name()), (Some(at(5_000)), before.state.name()));
        let sent = scene.node.sent();
        assert!(sent[0].starts_with("record ") && sent[1].ends_with(" in 5000 ms"), "{sent:?}");
        assert_eq!(scene.server.schedules.borrow().len(), 1, "in place of the old one");
    }
}

#[test]
fn a_time_that_is_over_means_now() {
    let mut scene = Scene::new();
    waits(&mut scene, scheduled);
    scene.server.pass(std::time::Duration::from_secs(7));
    assert_eq!(reschedule(&scene, &to(at(-1))).unwrap().state.run_at(), Some(at(7_000)));
}

#[test]
fn a_run_may_wait_in_another_queue_or_at_another_priority_and_keeps_its_time() {
    let mut scene = Scene::new();
    waits(&mut scene, scheduled);
    let (queue, priority) = (Queue::parse("mail").unwrap(), Priority::new(1).unwrap());
    let change = Change { queue: Some(queue.clone()), priority: Some(priority), run_at: None };
    let run = reschedule(&scene, &change).unwrap();
    assert_eq!((&run.queue, run.priority, run.state.run_at()), (&queue, priority, Some(at(60_000))));
    assert_eq!(scene.server.last_run().queue, queue);
}

/// Given a run that has fallen due and waits in its lane, when it is to start now, then it keeps its place; and it goes
/// to no other lane, also if it is to start later, as its message would stay in this one.
#[test]
fn a_run_that_is_due_keeps_its_place_in_its_lane_and_goes_to_no_other() {
    let waits_for: [Stands; 3] = [scheduled, |scene| retrying(scene.running(), at(60_000)), snoozed];
    for run in waits_for {
        let mut scene = Scene::new();
        waits(&mut scene, run);
        scene.server.pass(std::time::Duration::from_secs(61));
        scene.server.fire();
        let run = reschedule(&scene, &to(at(0))).unwrap();
        assert_eq!((run.state.run_at(), scene.node.sent()), (Some(at(60_000)), vec![]), "nothing is written");
        let elsewhere = Change { queue: Some(Queue::parse("mail").unwrap()), ..Change::default() };
        for is_later in [false, true] {
            if is_later {
                reschedule(&scene, &to(at(90_000))).unwrap();
                scene.node.sent();
            }
            let error = reschedule(&scene, &elsewhere).unwrap_err();
            assert!(error.code == 409 && error.message.contains("waits for a worker in its lane"), "{error}");
            assert_eq!(scene.node.sent(), [""; 0]);
        }
    }
}

/// Given a run in the order of its key that waits for its retry, when that is to come later, then the order lasts
/// beyond the new time.
#[test]
fn the_order_of_its_key_is_kept_beyond_the_new_time() {
    let mut scene = Scene::with(Some(&JobOptions { concurrency_key: Some("k".to_owned()), ..JobOptions::default() }));
    scene.node.policies.default_type.ordered = true;
    assert!(scene.begins().0.is_some());
    waits(&mut scene, |scene| retrying(scene.server.last_run(), at(60_000)));
    reschedule(&scene, &to(at(90_000))).unwrap();
    let sent = scene.node.sent();
    assert_eq!(sent[1], format!("order {RUN}"), "{sent:?}");
}

#[test]
fn a_run_that_waits_for_no_time_is_refused_and_the_error_says_what_it_does() {
    let states: [(Stands, &str); 4] = [
        (|scene| scene.fresh(), "waits for a worker in its lane; cancel it and submit it again: it is enqueued"),
        (|scene| scene.running(), "runs: it is running"),
        (|scene| after(scene.running(), Settlement::Cancel), "has ended: it is cancelled"),
        (
            |scene| {
                let run = scene.fresh();
                after(run, Settlement::Defer { at: at(9_000), reason: DeferReason::NoHandlerOnline, put_back: None })
            },
            "waits for a handler of t, and for no time that could be changed: it is enqueued",
        ),
    ];
    for (run, why) in states {
        let mut scene = Scene::new();
        let run = run(&mut scene);
        scene.server.has_record(run);
        let error = reschedule(&scene, &to(at(5_000))).unwrap_err();
        assert_eq!((error.code, error.message), (409, format!("run_id: {RUN} {why}")));
        assert!(scene.node.sent().is_empty());
    }
    let scene = Scene::new();
    scene.server.lane.borrow_mut().clear();
    let error = reschedule(&scene, &to(at(5_000))).unwrap_err();
    assert_eq!((error.code, error.message), (404, format!("run_id: no run {RUN} of tenant default is known")));
}

#[test]
fn a_run_whose_schedule_is_not_written_yet_is_still_being_submitted() {
    let mut scene = Scene::new();
    let run = Run { published: false, ..scheduled(&mut scene) };
    scene.server.has_record(run);
    let error = reschedule(&scene, &to(at(5_000))).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (503, "the run is just being submitted; try again"));
}

#[test]
fn a_record_that_its_submission_could_not_mark_any_more_is_marked() {
    let mut scene = Scene::new();
    waits(&mut scene, |scene| Run { published: false, ..scheduled(scene) });
    reschedule(&scene, &to(at(5_000))).unwrap();
    assert!(scene.server.last_run().published, "its record would go away by itself, and its schedule stands");
}

#[test]
fn the_newest_record_decides_if_another_write_comes_first() {
    let mut scene = Scene::new();
    waits(&mut scene, scheduled);
    scene.server.before_write(|server| server.changes(RUN, |run| run.tags = vec!["urgent".to_owned()]));
    let run = reschedule(&scene, &to(at(5_000))).unwrap();
    assert_eq!((run.tags.as_slice(), run.state.run_at()), (&["urgent".to_owned()][..], Some(at(5_000))));

    let mut scene = Scene::new();
    waits(&mut scene, scheduled);
    scene.server.before_write(|server| server.changes(RUN, |run| run.begin(1, &"n2".into(), at(5))));
    assert_eq!(reschedule(&scene, &to(at(5_000))).unwrap_err().code, 409, "it has just begun");
}

#[test]
fn a_rescheduling_that_is_repeated_after_any_fault_has_its_time_in_record_and_schedule() {
    for call in 0..3 {
        for fault in [Fault::Lost, Fault::AnswerLost] {
            let mut scene = Scene::new();
            waits(&mut scene, scheduled);
            scene.server.breaks(call, fault);
            let first = reschedule(&scene, &to(at(5_000)));
            let run = first.or_else(|_| reschedule(&scene, &to(at(5_000)))).unwrap();
            assert!(scene.server.is_broken(), "call {call} is made");
            assert_eq!(run.state.run_at(), Some(at(5_000)));
            let schedules = scene.server.schedules.borrow();
            let times: Vec<_> = schedules.values().map(|(at, _)| *at).collect();
            assert_eq!(times, [at(5_000)], "{fault:?} at call {call}");
        }
    }
}
