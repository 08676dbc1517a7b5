//! What is asked of the API beyond reading and submitting is written down, and never stands in the way of the action.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_harness::{Scrape, World, eventually};
use serde_json::{Value, json};

use crate::http::on_a_free_port;
use crate::{served_by, world};

/// A page of the audit has 500 entries at most.
#[tokio::test]
async fn a_page_of_the_audit_is_bounded() {
    let world = world().await;
    let _node = world.node().start().await;
    for limit in [0, 501] {
        let error = world.try_request("_all", "audit.list", json!({"limit": limit})).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, "limit: is not one of 1 to 500"));
    }
}

/// Waits until the audit has so many entries, and returns them as a tenant sees them.
async fn entries(world: &World, tenant: &str, count: usize) -> Vec<Value> {
    eventually("the audit", Duration::from_secs(60), async || {
        let (mut all, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let mut asked = json!({"limit": 3});
            if cursor.is_string() {
                asked["cursor"] = cursor;
            }
            let page = world.try_request(tenant, "audit.list", asked).await.unwrap();
            all.extend(page["entries"].as_array().unwrap().iter().cloned());
            cursor = page["cursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        if all.len() >= count { Ok(all) } else { Err(json!(all)) }
    })
    .await
}

/// Given actions of a tenant, an operator and one who may not, when the audit is read, then each action has an entry
/// from before it and one from after it, without payloads; reading and submitting have none; a tenant sees its own.
#[tokio::test]
async fn every_action_is_written_down_before_and_after_it() {
    let world = world().await;
    let file = world.dir().join("audit.jsonl");
    let node = world.node().with("types.flaky", &served_by("fail", "max_attempts = 1"));
    let node = on_a_free_port(node).with("audit", &format!("file = '{}'", file.display())).start().await;
    let run = world.publish("flaky").json(json!({"card": "s3cret"})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    world.request("dlq.list", json!({})).await;
    let later = world.submit(json!({"type": "noop", "delay_ms": 600_000, "payload": "s3cret"})).await;

    let replay = json!({"run_id": run, "set": {"payload": "s3cret", "priority": 2}});
    assert_eq!(world.request("dlq.replay", replay).await["replayed"], 1);
    let cancel = world
        .command(["runs", "cancel", &later, "--yes", "--reason", "INC-7 é"])
        .env("USER", "anna")
        .output()
        .await
        .unwrap();
    assert!(cancel.status.success(), "{cancel:?}");
    let forbidden = world.try_request("default", "breakers.trip", json!({"tenant": "default", "type": "noop"})).await;
    assert_eq!(forbidden.unwrap_err().code, 403);
    let level = json!({"node": "n1", "level": "debug"});
    world.try_request("_all", "nodes.log_level", level).await.unwrap();

    let all = entries(&world, "_all", 8).await;
    let of = |endpoint: &str, stage: &str| {
        let found: Vec<&Value> =
            all.iter().filter(|entry| entry["endpoint"] == endpoint && entry["stage"] == stage).collect();
        assert_eq!(found.len(), 1, "{endpoint} {stage}: {all:?}");
        found[0].clone()
    };
    assert_eq!(all.len(), 8, "{all:?}");
    let (asked, done) = (of("dlq.replay", "asked"), of("dlq.replay", "done"));
    assert_eq!((&asked["id"], &asked["tenant"], &asked["node"]), (&done["id"], &json!("default"), &json!(node.name())));
    assert_eq!(asked["request"]["set"], json!({"payload": "left out", "priority": 2}));
    assert_eq!(done["outcome"]["replayed"], 1);
    assert!(asked["from"].as_str().unwrap().starts_with("_INBOX"), "{asked}");
    assert_eq!(of("runs.cancel", "asked")["reason"], "INC-7 é");
    let by = of("runs.cancel", "asked")["by"].clone();
    assert!(by.as_str().unwrap().starts_with("anna@"), "{by}");
    assert_eq!(of("runs.cancel", "done")["outcome"]["state"], "cancelled");
    assert_eq!(of("breakers.trip", "refused")["error"]["code"], 403);
    assert_eq!(of("nodes.log_level", "done")["tenant"], "_all");
    assert_eq!(entries(&world, "default", 6).await.len(), 6, "without the operator's");

    let shown = async |options: &[&str]| {
        let command = ["audit", "--since", "1h"].iter().chain(options).copied();
        let shown = world.command(command).output().await.unwrap();
        (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap())
    };
    let (own, note) = shown(&[]).await;
    assert!(own.contains("dlq.replay") && own.contains("anna@") && !own.contains("s3cret"), "{own}");
    assert!(!own.contains("nodes.log_level") && note.contains("--all"), "{own}{note}");
    let (all, note) = shown(&["--all"]).await;
    assert!(all.contains("dlq.replay") && all.contains("nodes.log_level") && note.is_empty(), "{all}{note}");
    let (some, _) = shown(&["--all", "--action", "nodes"]).await;
    assert!(!some.contains("dlq.replay") && some.contains("nodes.log_level"), "{some}");
    let stored = Scrape::of(&node).await.sum("longshore_audit_records_total", &[]);
    assert_eq!(stored as u64, 8);
    node.stop().await;
    let lines = std::fs::read_to_string(file).unwrap();
    assert_eq!(lines.lines().count(), 8, "{lines}");
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && !lines.contains("s3cret"));
}

/// Given requests of which a field is misspelt or of another kind, when the audit is read, then it has what they were
/// about and which field was wrong, and neither the request nor its refusal has a value that may be a payload.
#[tokio::test]
async fn a_request_that_cannot_be_read_leaves_no_payload_in_the_audit() {
    let world = world().await;
    let file = world.dir().join("audit.jsonl");
    let node = world.node().with("audit", &format!("file = '{}'", file.display())).start().await;
    for set in [json!({"paylod": {"card": "s3cret"}}), json!({"priority": "s3cret"}), json!({"headers": "s3cret"})] {
        let wrong = json!({"run_id": "run-1", "set": set});
        assert_eq!(world.try_request("acme", "dlq.replay", wrong).await.unwrap_err().code, 400);
    }
    let all = entries(&world, "acme", 6).await;
    node.stop().await;
    let about = json!({"run_id": "run-1", "set": "left out"});
    assert_eq!(all.iter().filter(|entry| entry["request"] == about).count(), 3, "{all:?}");
    for says in [
        "set.paylod: unknown field `paylod`",
        "set.priority: invalid type: …, expected",
        "set.headers: invalid type: …, expected",
    ] {
        let is_said = |entry: &Value| entry["error"]["message"].as_str().is_some_and(|text| text.contains(says));
        assert!(all.iter().any(is_said), "{says}: {all:?}");
    }
    let lines = std::fs::read_to_string(file).unwrap();
    assert!(lines.lines().count() == 6 && !lines.contains("s3cret") && !json!(all).to_string().contains("s3cret"));
}

/// Given a stream of the audit that takes no more entries, when an action is asked for, then it is carried out all the
/// same, and its entries are in the log and counted.
#[tokio::test]
async fn an_action_is_carried_out_also_where_the_audit_cannot_be_written() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let later = world.submit(json!({"type": "noop", "delay_ms": 600_000})).await;
    world.jetstream().delete_stream("LONGSHORE_AUDIT").await.unwrap();

    assert_eq!(world.request("runs.cancel", json!({"run_id": later})).await["state"], "cancelled");

    crate::logged(node.log(), "an entry of the audit could not be stored").await;
    let lost = Scrape::of(&node).await.sum("longshore_audit_failures_total", &[("to", "stream")]);
    assert!(lost >= 1.0, "{lost}");
}

/// Given a file that cannot be made, when a node starts that is to write the audit into it, then it does not take work
/// without: it ends, and names the setting and the reason.
#[tokio::test]
async fn a_node_does_not_start_if_it_cannot_write_the_files_of_the_audit() {
    let world = world().await;
    for setting in ["file", "events_file"] {
        let path = world.dir().join("missing").join("audit.jsonl");
        let node = world.node().with("audit", &format!("{setting} = '{}'", path.display()));
        let said = node.try_start().await.unwrap_err().log;
        assert!(said.contains(&format!("audit.{setting}: {}: No such file", path.display())), "{said}");
    }
}

/// Given a node that writes the event log into a file, when jobs of two tenants run, the node is killed, jobs run on
/// another node, and it starts again, then its file has every line of the log, those of its absence included.
#[tokio::test]
async fn every_event_is_in_the_file_also_those_from_before_a_kill_and_from_an_absence() {
    let world = world().await;
    let file = world.dir().join("events.jsonl");
    let settings = format!("events_file = '{}'\nfile_max_bytes = '16KiB'", file.display());
    let writer = world.node().name("writer").with("audit", &settings).start().await;
    let run_some = async |count: usize| {
        for tenant in ["default", "acme"] {
            let jobs = world.publish("noop").tenant(tenant).many((0..count).map(|number| json!(number))).await;
            for job in jobs {
                assert_eq!(world.wait_as(tenant, &job.run_id, Duration::from_secs(60)).await.state, "completed");
            }
        }
    };
    run_some(50).await;
    writer.kill9().await;
    let other = world.node().name("other").start().await;
    run_some(20).await;
    writer.restart().await;
    run_some(5).await;
    // A job leaves its lane only once the log has its events.
    crate::is_emptied(&world).await;

    let stored = world.event_log("*").await;
    let wanted: BTreeSet<String> = stored.iter().map(|logged| logged.event.id.clone()).collect();
    assert!(wanted.len() >= 2 * 75 * 3, "{}", wanted.len());
    eventually("every event", Duration::from_secs(60), async || {
        let files = std::fs::read_dir(world.dir()).unwrap().map(|entry| entry.unwrap().path());
        let events = files.filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("events.jsonl") && !name.contains("position")
        });
        let events: Vec<_> = events.collect();
        let lines = events.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<String>();
        let found: BTreeSet<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
            .collect();
        let missing = wanted.difference(&found).count();
        if missing == 0 && events.len() > 1 { Ok(()) } else { Err(format!("{missing} are missing in {events:?}")) }
    })
    .await;
    other.stop().await;
    writer.stop().await;
}
