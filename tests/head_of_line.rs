//! Jobs that cannot start do not keep other jobs from starting, and they start in their order once they can.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use longshore_harness::{Handler, NodeBuilder, Receipt, Reply, Scrape, World, eventually};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::http::on_a_free_port;
use crate::{WITHIN, served_by, times, world};

/// A node whose type `full` has one slot, so that its jobs start one after the other, and few workers.
fn node<'w>(world: &'w World) -> NodeBuilder<'w> {
    world.node().with("queues.main", "concurrency = 8").with("types.full", &served_by("remote", "slots = 1"))
}

/// A handler that holds each job until there is a permit for it.
async fn kept(world: &World, may_finish: &Arc<Semaphore>) -> Handler {
    let may_finish = Arc::clone(may_finish);
    let handler = world.handler("full").announce("longshore.slots", "1");
    let kept = move |_| {
        let may_finish = Arc::clone(&may_finish);
        async move {
            may_finish.acquire().await.unwrap().forget();
            Reply::json(json!(null))
        }
    };
    handler.start(kept).await
}

async fn parked(world: &World) -> u64 {
    world.stored("LONGSHORE_PARKED").await
}

/// Waits until that many jobs are parked.
async fn are_parked(world: &World, wanted: impl RangeBounds<u64> + Debug) {
    eventually(&format!("{wanted:?} parked jobs"), WITHIN, async || match parked(world).await {
        count if wanted.contains(&count) => Ok(()),
        count => Err(format!("there are {count}")),
    })
    .await;
}

async fn completes(world: &World, receipts: &[Receipt]) {
    let states = world.ends(receipts, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
}

/// Given a type whose handlers are full and a type without handlers, each with many waiting jobs, when another job
/// arrives behind them, then it is done while they wait; and once there are handlers with capacity, the waiting jobs
/// are done in their order.
#[tokio::test]
async fn what_cannot_start_keeps_nothing_else_waiting() {
    let world = world().await;
    let node = on_a_free_port(node(&world)).start().await;
    let may_finish = Arc::new(Semaphore::new(0));
    let handler = kept(&world, &may_finish).await;
    let full = world.publish("full").many((0..150).map(|number| json!(number))).await;
    let nobodys = world.publish("nobodys").many((0..100).map(|number| json!(number))).await;

    let quick = world.publish("noop").json(json!({})).await;

    assert_eq!(world.wait(&quick).await.state, "completed");
    are_parked(&world, 150..).await;
    let queues = world.request("queues.list", json!({"queue": "main"})).await;
    // All but the few for which a node has just found no handler: these wait for a time.
    assert!(queues["queues"][0]["depths"]["p5"].as_u64().unwrap() >= 240, "{queues}");
    assert_eq!(world.record(&full[149].run_id).await.map(|record| record.state).as_deref(), Some("enqueued"));
    let quick = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&quick).await.state, "completed");

    let found = world.handler("nobodys").start(async |_| Reply::json(json!(1))).await;
    may_finish.add_permits(1_000);
    completes(&world, &full).await;
    completes(&world, &nobodys).await;
    world.no_job_is_left(WITHIN).await;
    assert_eq!(parked(&world).await, 0);
    let scrape = Scrape::of(&node).await;
    let [parked, back] =
        ["parked", "unparked"].map(|what| scrape.sum(&format!("longshore_jobs_{what}_total"), &[]) as u64);
    assert!(parked >= 150 && parked == back, "{parked} parked, {back} taken back");
    let order: Vec<String> = handler.calls().into_iter().map(|call| call.run_id).collect();
    let published: Vec<String> = full.iter().map(|receipt| receipt.run_id.clone()).collect();
    assert_eq!(order, published);
    assert!(node.stop().await.success());
    let calls = handler.calls().into_iter().chain(found.calls()).collect();
    let all: Vec<Receipt> = full.into_iter().chain(nobodys).collect();
    world.history(&all, calls).await.assert_sound();
}

/// Given more jobs of a full type at once than a node may have on their way to be parked, when there is capacity again,
/// then they start in the order in which they were published.
#[tokio::test]
async fn a_flood_of_a_full_type_starts_in_its_order() {
    let world = world().await;
    let node = world.node().with("types.full", &served_by("remote", "slots = 1")).start().await;
    let may_finish = Arc::new(Semaphore::new(0));
    let handler = kept(&world, &may_finish).await;
    let full = world.publish("full").many((0..800).map(|number| json!(number))).await;
    are_parked(&world, 500..).await;

    may_finish.add_permits(full.len());

    completes(&world, &full).await;
    let order: Vec<String> = handler.calls().into_iter().map(|call| call.run_id).collect();
    let published: Vec<String> = full.iter().map(|receipt| receipt.run_id.clone()).collect();
    assert_eq!(order, published);
    assert!(node.stop().await.success());
}

/// Given jobs of many keys whose type has no handler, when the node looks for one again and again, then none of them
/// comes back into the queue only to be parked once more; and once there is a handler, they are done.
#[tokio::test]
async fn what_cannot_start_stays_parked() {
    let world = world().await;
    let node = on_a_free_port(world.node().with("node", "lease = '2s'")).start().await;
    let mut receipts = Vec::new();
    for number in 0..300 {
        let key = format!("k{number}");
        receipts.push(
            world.publish("nobodys").header("Longshore-Limit-Key", &key).send(json!(number).to_string()).await.unwrap(),
        );
    }
    are_parked(&world, 240..).await;
    let taken_back = async || Scrape::of(&node).await.sum("longshore_jobs_unparked_total", &[]);
    let before = taken_back().await;

    // Meanwhile the jobs that a node holds wait for longer than it holds them, several times.
    for _ in 0..6 {
        let later = world.publish("noop").header("Longshore-Delay", "1s").json(json!({})).await;
        assert_eq!(world.wait(&later).await.state, "completed");
    }

    // One at a time, once none of those is left that were tried before.
    let moved = taken_back().await - before;
    assert!(moved < 20.0, "{moved} jobs were taken back");

    let found = world.handler("nobodys").start(async |_| Reply::json(json!(1))).await;
    completes(&world, &receipts).await;
    assert_eq!(parked(&world).await, 0);
    assert_eq!(found.calls().len(), receipts.len());
    assert!(node.stop().await.success());
}

/// Given parked jobs, when one of them, and then all, are cancelled, then none of them starts.
#[tokio::test]
async fn what_is_parked_can_be_cancelled() {
    let world = world().await;
    let node = node(&world).start().await;
    let may_finish = Arc::new(Semaphore::new(0));
    let handler = kept(&world, &may_finish).await;
    let full = world.publish("full").many((0..60).map(|number| json!(number))).await;
    are_parked(&world, 40..).await;

    let one = &full[59].run_id;
    assert_eq!(world.request("runs.cancel", json!({"run_id": one})).await["state"], "cancelled");
    let rest = world.request("runs.cancel", json!({"type": "full", "state": "enqueued"})).await;
    assert_eq!((rest["failed"].clone(), rest["more"].clone()), (json!([]), json!(false)), "{rest}");
    // One of them may have started; if that was a moment ago, it counts as waiting.
    let cancelled = rest["cancelled"].as_u64().unwrap() as usize;
    assert!((58..=59).contains(&cancelled), "{rest}");

    may_finish.add_permits(1_000);
    let states = world.ends(&full, WITHIN).await;
    assert_eq!(states.iter().filter(|state| *state == "completed").count(), 59 - cancelled);
    are_parked(&world, ..=0).await;
    world.no_job_is_left(WITHIN).await;
    assert!(handler.calls().len() <= 1, "{:?}", handler.calls());
    assert!(node.stop().await.success());
    world.history(&full, handler.calls()).await.assert_sound();
}

/// Given jobs that are parked and returned to their lane, when a node is killed at a step of that, then each is done
/// once.
async fn nothing_is_lost_at(point: &str) {
    let world = world().await;
    let may_finish = Arc::new(Semaphore::new(0));
    let handler = kept(&world, &may_finish).await;
    let mut receipts = Vec::new();
    for number in 1..=times("LONGSHORE_TEST_KILLS", 1) {
        let kill = format!("{point}=kill@{}", number * 3);
        let quick = node(&world).with("node", "lease = '2s'").env("LONGSHORE_FAIL_POINTS", &kill);
        let node = quick.start().await;
        receipts.extend(world.publish("full").many((0..40).map(|number| json!(number))).await);
        // So that capacity becomes free, and jobs are returned to their lane.
        may_finish.add_permits(10);
        node.wait_exit(WITHIN).await;
    }
    let other = node(&world).with("node", "lease = '2s'").name("other").start().await;
    let quick = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&quick).await.state, "completed");
    may_finish.add_permits(10_000);
    completes(&world, &receipts).await;
    world.no_job_is_left(WITHIN).await;
    assert!(other.stop().await.success());
    let mut runs: Vec<String> =
        handler.calls().into_iter().filter(|call| call.end.is_some()).map(|call| call.run_id).collect();
    runs.sort();
    runs.dedup();
    assert_eq!(runs.len(), receipts.len());
}

#[tokio::test]
async fn killed_before_it_is_parked() {
    nothing_is_lost_at("before-park").await;
}

#[tokio::test]
async fn killed_after_it_was_parked() {
    nothing_is_lost_at("after-park").await;
}

#[tokio::test]
async fn killed_as_it_is_taken_back() {
    nothing_is_lost_at("after-return").await;
}

/// Given a type whose parked jobs are all done, when later jobs arrive one at a time, then they start straight from
/// their lane: no job is parked only because another one was.
#[tokio::test]
async fn once_none_is_parked_later_jobs_start_from_their_lane() {
    let world = world().await;
    let node = node(&world).start().await;
    let may_finish = Arc::new(Semaphore::new(0));
    let _handler = kept(&world, &may_finish).await;
    let full = world.publish("full").many((0..60).map(|number| json!(number))).await;
    are_parked(&world, 40..).await;
    may_finish.add_permits(1_000);
    completes(&world, &full).await;

    let mut were_parked = 0;
    for number in 0..20 {
        let run = world.publish("full").json(json!(number)).await;
        assert_eq!(world.wait(&run).await.state, "completed");
        let record = world.record(&run).await.unwrap();
        were_parked += usize::from(record.rest.contains_key("deferrals"));
    }

    // The first ones may arrive while the last parked ones are still known as that.
    assert!(were_parked <= 5, "{were_parked} of 20 jobs were parked though their handler was free");
    assert!(node.stop().await.success());
}
