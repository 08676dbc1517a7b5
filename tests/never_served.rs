//! A job whose type no handler was ever online for, which is most likely misspelt, ends soon and says so; a type that
//! was served once is waited for.

use longshore_harness::{NodeBuilder, Record, Reply, World, eventually};
use serde_json::json;

use crate::{AT_ONCE, SOON, served_by, world};

/// With the shortest graces: what was never served is dead with its first failed attempt.
fn node(world: &World) -> NodeBuilder<'_> {
    let graces = "no_handler_grace = '600ms'\nnever_served_grace = '600ms'\nmax_attempts = 1000";
    world.node().with("defaults", &format!("{graces}\n{AT_ONCE}"))
}

/// Has a handler of the type do a job, and go.
async fn served_once(world: &World, job_type: &str) {
    let handler = world.handler(job_type).start(async |_| Reply::json(json!("done"))).await;
    let run = world.publish(job_type).json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    handler.stop().await;
}

/// The record of a run once so many of its attempts have failed.
async fn has_failed(world: &World, run: &str, attempts: usize) -> Record {
    eventually("attempts without a handler", std::time::Duration::from_secs(120), async || {
        let record = world.record(run).await.ok_or("no record")?;
        let failed = record.attempts.iter().filter(|attempt| attempt.error.is_some()).count();
        if failed >= attempts { Ok(record) } else { Err(format!("{failed}")) }
    })
    .await
}

fn error(record: &Record) -> (&str, &str) {
    let error = record.error.as_ref().unwrap();
    (&error.kind, &error.message)
}

/// Given a type with a handler, when a job of a misspelt type comes, then its run is dead soon, and its error names the
/// right type and the subject on which a handler would listen. Once such a handler is there, a replay gets the job
/// done.
#[tokio::test]
async fn a_misspelt_type_is_dead_soon_and_its_error_names_the_right_one() {
    let world = world().await;
    let node = node(&world).start().await;
    served_once(&world, "report.render").await;

    let run = world.publish("report.rendr").json(json!({})).await;
    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt), ("dead", 1));
    let (kind, message) = error(&end);
    assert_eq!(kind, "no_handler");
    let begins = "no handler of `report.rendr` was ever online; did you mean `report.render`? its handlers subscribe to \
                  longshore.work.default.report.rendr,";
    assert!(message.starts_with(begins), "{message}");
    let _late = world.handler("report.rendr").start(async |_| Reply::json(json!("at last"))).await;
    world.eventually_dead_letters(1).await;
    let answer = world.request("dlq.replay", json!({"type": "report.rendr"})).await;
    assert_eq!(answer["replayed"], 1, "{answer}");
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a type with its own grace, as long as that lasts its job is tried, and its error says for how long.
#[tokio::test]
async fn until_its_grace_is_over_its_error_says_when_that_will_be() {
    let world = world().await;
    let limits = format!("never_served_grace = '1h'\n{SOON}");
    let node = node(&world).with("types.rare", &served_by("remote", &limits)).start().await;
    let run = world.publish("rare").json(json!({})).await;

    let record = has_failed(&world, &run, 1).await;

    let (_, message) = error(&record);
    assert!(
        message.contains("was ever online") && message.contains("; if none comes, the run is dead after 2"),
        "{message}"
    );
    let waiting = world.request("queues.list", json!({})).await;
    assert_eq!(waiting["no_handler"][0]["never_served"], true, "{waiting}");
    assert!(node.stop().await.success());
}

/// Given a type that was served once and whose handler is gone, when its jobs have waited for as long as those of a
/// misspelt type may, then they are tried on; so they are on a node that came later, which has that from the cluster.
#[tokio::test]
async fn a_type_that_was_served_once_is_waited_for_on_every_node() {
    let world = world().await;
    let first = node(&world).name("first").start().await;
    served_once(&world, "report.render").await;
    let run = world.publish("report.render").json(json!({})).await;
    let tried_on = async |run: &str| {
        let record = has_failed(&world, run, 2).await;
        assert_eq!(error(&record), ("no_handler", "no handler was online for 600ms"), "{}", record.state);
    };
    tried_on(&run).await;
    assert!(first.stop().await.success());

    let second = node(&world).name("second").start().await;
    let later = world.publish("report.render").json(json!({})).await;
    tried_on(&later).await;
    let misspelt = world.publish("report.rendr").json(json!({})).await;
    let end = world.wait(&misspelt).await;
    assert!(error(&end).1.contains("did you mean `report.render`?"), "{:?}", end.error);

    let _back = world.handler("report.render").start(async |_| Reply::json(json!("again"))).await;
    for run in [run, later] {
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    assert!(second.stop().await.success());
}

/// Given a cluster that had done work before its nodes remembered types, as one that is upgraded, when a type has no
/// handler, then no node claims that it never had one.
#[tokio::test]
async fn a_cluster_that_is_older_than_its_memory_claims_nothing() {
    let world = world().await;
    let before = node(&world).name("before").start().await;
    served_once(&world, "report.render").await;
    assert!(before.stop().await.success());
    forget(&world).await;

    let after = node(&world).name("after").start().await;
    let run = world.publish("report.render").json(json!({})).await;
    let record = has_failed(&world, &run, 2).await;

    assert_eq!(error(&record), ("no_handler", "no handler was online for 600ms"));
    assert!(after.stop().await.success());
}

/// Takes what the cluster remembers of types away.
async fn forget(world: &World) {
    let control = world.jetstream().get_stream("KV_longshore_control").await.unwrap();
    control.purge().filter("$KV.longshore_control.served.>").await.unwrap();
}

/// Given a type with a handler, when a misspelt one is paused, then the answer holds, and warns with the right name.
#[tokio::test]
async fn a_pause_of_a_type_that_nobody_knows_warns() {
    let world = world().await;
    let _node = node(&world).start().await;
    served_once(&world, "report.render").await;
    // From when on it is known that what is remembered is complete.
    let gone = world.publish("report.rendr").json(json!({})).await;
    assert_eq!(world.wait(&gone).await.state, "dead");

    let warned = world.command(["queues", "pause", "--type", "report.rendr"]).output().await.unwrap();
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success() && said.contains("no handler of type report.rendr is known"), "{warned:?}");
    assert!(said.contains("did you mean report.render?"), "{said}");
    let known = world.command(["queues", "pause", "--type", "report.render"]).output().await.unwrap();
    assert!(known.status.success() && known.stderr.is_empty(), "{known:?}");
}
