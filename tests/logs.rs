//! The log says what operators ask for, and neither secrets nor payloads.

use async_nats::ConnectOptions;
use longshore_harness::{Job, Reply, World};
use longshore_natsd::Options;
use serde_json::json;

use crate::{AT_ONCE, use_binary, world};

/// Has the node log by that level.
async fn set_level(world: &World, level: &str) {
    let answer = world.try_request("_all", "nodes.log_level", json!({"node": "n1", "level": level})).await.unwrap();
    assert_eq!(answer["node"], "n1");
}

/// Given a node that runs, when its log is asked for errors alone and then for everything again, then lines in between are
/// missing and others are not.
#[tokio::test]
async fn the_level_of_the_log_is_changed_while_the_node_runs() {
    let world = world().await;
    let node = world.node().start().await;
    let handler = world.handler("talks").start(|job: Job| async move {
        job.ask("log", job.payload.clone()).await;
        Reply::json(json!(1))
    });
    let _handler = handler.await;
    for (level, word) in [(None, "first"), (Some("error"), "second"), (Some("info"), "third")] {
        if let Some(level) = level {
            set_level(&world, level).await;
        }
        let run = world.publish("talks").bytes(word).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    node.stop().await;
    let said =
        |word: &str| node.log().since(0).iter().filter(|line| line.contains(&format!("handler: {word}"))).count();
    assert_eq!([said("first"), said("second"), said("third")], [1, 0, 1]);

    node.restart().await;
    let wrong = json!({"node": "n1", "level": "loud"});
    let refused = world.try_request("_all", "nodes.log_level", wrong).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.starts_with("level: \"loud\" is not one of")),
        (400, true),
        "{refused:?}"
    );
    let nobody = world.try_request("_all", "nodes.log_level", json!({"node": "n9", "level": "info"})).await;
    assert_eq!(nobody.unwrap_err().code, 404);
}

/// Given a node that logs all that it can, when jobs with secrets in payload, headers, keys and results complete, fail, die and
/// are replayed, then none of the secrets, nor the password of NATS, is in the log.
#[tokio::test]
async fn neither_payloads_nor_secrets_are_logged() {
    use_binary();
    let options = Options {
        max_file: longshore_harness::ROOM,
        extra: "authorization {users: [{user: all, password: s3cret-password}]}".to_owned(),
        ..Options::default()
    };
    let login = ConnectOptions::with_user_and_password("all".into(), "s3cret-password".into());
    let world = World::with_login(options, login).await;
    let node = world.node().with("types.pays", &format!("max_attempts = 2\n{AT_ONCE}"));
    let node = node.env("NATS_USER", "all").env("NATS_PASSWORD", "s3cret-password").start().await;
    set_level(&world, "trace").await;
    let handler = world.handler("pays").start(|job: Job| async move {
        match job.round {
            1 => Reply::error(503, "the service is away"),
            _ => Reply::json(json!({"token": "s3cret-result"})),
        }
    });
    let _handler = handler.await;
    let publish =
        world.publish("pays").header("X-Token", "s3cret-header").header("Longshore-Idempotency-Key", "s3cret-key");
    let run = publish.json(json!({"card": "s3cret-payload"})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_letters(1).await;
    assert_eq!(world.request("dlq.replay", json!({"run_id": run})).await["replayed"], 1);
    assert_eq!(world.wait(&run).await.state, "completed");
    let submitted = json!({"type": "pays", "payload": "s3cret-payload", "delay_ms": 600_000, "headers": {"X-Token": "s3cret-header"}});
    let later = world.submit(submitted).await;
    world.request("runs.cancel", json!({"run_id": later})).await;
    let invalid = world.publish("pays").header("Longshore-Delay", "never").json(json!("s3cret-payload")).await;
    assert_eq!(world.wait(&invalid).await.state, "dead");

    node.stop().await;
    let lines = node.log().since(0);
    assert!(lines.iter().any(|line| line.contains("invalid job")), "the log tells of jobs");
    let found: Vec<&String> = lines.iter().filter(|line| line.contains("s3cret")).collect();
    assert!(found.is_empty(), "{found:?}");
}
