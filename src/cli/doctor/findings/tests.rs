//! Every finding of the doctor, by the state of a cluster that has it.

use longshore_backbone::inspect::AccountLimits;
use serde_json::{Value, json};

use super::*;

fn stream(name: &str, replicas: usize, fill: u64) -> (String, Option<FoundStream>) {
    let found = FoundStream {
        name: name.to_owned(),
        messages: fill,
        bytes: 0,
        max_bytes: None,
        max_messages: Some(100),
        replicas,
        lagging: Vec::new(),
        has_consumer: true,
        change: StreamChange::None { kept: Vec::new() },
    };
    (name.to_owned(), Some(found))
}

fn facts() -> Facts {
    let user = User { account: "$G".to_owned(), permissions: None };
    Facts {
        server: ServerFacts { version: "2.15.1".to_owned(), name: "s".to_owned(), max_payload: 1 << 20, cluster: None },
        account: Ok(Account::default()),
        user: Ok((user, Some(Skew { ahead_ms: 0, within_ms: 1 }))),
        rights: (Vec::new(), Vec::new()),
        streams: Ok(vec![stream("LONGSHORE_DLQ", 1, 0)]),
        replicas: None,
        wanted_bytes: 0,
        has_settings: false,
        clocks: Vec::new(),
        monitored: None,
        nodes: Ok(Vec::new()),
        healths: Vec::new(),
        unanswered: Vec::new(),
        queues: Vec::new(),
        no_handler: Vec::new(),
    }
}

fn nodes(names: &[&str]) -> Vec<NodeStatus> {
    let node = |name: &&str| {
        serde_json::from_value(json!({"node": name, "version": "0.1.0", "state": "running",
            "started_at": "2026-11-21T12:00:00Z", "seen_at": "2026-11-21T12:00:00Z", "queues": {}}))
    };
    names.iter().map(|name| node(name).unwrap()).collect()
}

/// The findings of a check, as `level text`.
fn of(facts: &Facts, check: &str) -> Vec<String> {
    let found = facts.findings().into_iter().filter(|finding| finding.check == check);
    found.map(|finding| format!("{} {}", finding.level.word(), finding.text)).collect()
}

#[test]
fn a_clock_is_judged_by_what_is_certain() {
    for (ahead_ms, within_ms, level) in
        [(900, 1, None), (1_500, 700, None), (-1_500, 1, Some("warning")), (60_000, 1, Some("failure"))]
    {
        let mut facts = facts();
        facts.user.as_mut().unwrap().1 = Some(Skew { ahead_ms, within_ms });
        let found = of(&facts, "clocks");
        assert_eq!(found[0].split(' ').next(), Some(level.unwrap_or("ok")), "{ahead_ms}: {found:?}");
    }
    let mut facts = facts();
    facts.user.as_mut().unwrap().1 = Some(Skew { ahead_ms: -3_000, within_ms: 1 });
    assert_eq!(of(&facts, "clocks"), ["warning the clock of this machine is 3.0 s ahead of the server's"]);
}

#[test]
fn the_promise_is_that_of_copies_and_syncs() {
    let monitored = |sync_always| {
        let config = MonitoredConfig { sync_always, sync_interval: 120_000_000_000, max_storage: 0 };
        Some(Ok(Monitored { config, ..Monitored::default() }))
    };
    for (replicas, sync_always, promise) in [
        (
            1,
            false,
            "ok 1 copy, files are synced every 2 min 0 s: kill -9 and freezes of anything lose nothing; loss of power",
        ),
        (1, true, "ok 1 copy, each write is synced: kill -9 of anything and loss of power lose nothing"),
        (3, false, "ok 3 copies, files are synced every 2 min 0 s: any one server may fail"),
        (3, true, "ok 3 copies, each write is synced: any kills, cuts and losses of power"),
    ] {
        let mut facts = facts();
        facts.streams = Ok(vec![stream("LONGSHORE_DLQ", replicas, 0)]);
        facts.monitored = monitored(sync_always);
        let found = of(&facts, "durability");
        assert!(found.len() == 1 && found[0].starts_with(promise), "{found:?}");
    }
    let mut facts = facts();
    facts.streams = Ok(vec![stream("LONGSHORE_DLQ", 3, 0), stream("LONGSHORE_EVENTS", 1, 0)]);
    assert_eq!(
        of(&facts, "durability")[1],
        "warning streams have different numbers of copies; 1 have LONGSHORE_EVENTS"
    );
    facts.monitored = Some(Ok(Monitored { disabled: true, ..Monitored::default() }));
    assert!(of(&facts, "durability")[0].starts_with("failure JetStream is switched off"));
}

#[test]
fn what_fills_up_is_named_before_it_is_full() {
    let mut facts = facts();
    let streams =
        [("LONGSHORE_DLQ", 79), ("KV_longshore_runs", 85), ("LONGSHORE_JOBS_main_P5", 99), ("LONGSHORE_EVENTS", 99)];
    facts.streams = Ok(streams.map(|(name, fill)| stream(name, 1, fill)).into());
    let limits = AccountLimits { max_storage: 100 << 30, ..AccountLimits::default() };
    facts.account = Ok(Account { storage: 90 << 30, limits, ..Account::default() });
    assert_eq!(
        of(&facts, "storage"),
        [
            "warning KV_longshore_runs is 85 % full",
            "failure LONGSHORE_JOBS_main_P5 is 99 % full",
            "warning the account stores 90 % of its 100.0 GiB"
        ]
    );
    facts.account.as_mut().unwrap().storage = 0;
    facts.account.as_mut().unwrap().reserved_storage = 95 << 30;
    assert_eq!(of(&facts, "storage")[2], "note the account has reserved 95 % of its 100.0 GiB");
    facts.account.as_mut().unwrap().reserved_storage = 1_300 << 20;
    facts.account.as_mut().unwrap().limits.max_storage = 10 << 20;
    assert_eq!(of(&facts, "storage")[2], "warning the account has reserved 13000 % of its 10.0 MiB");
    facts.account.as_mut().unwrap().storage = 10 << 20;
    assert_eq!(of(&facts, "storage")[2], "failure the account stores 100 % of its 10.0 MiB");
}

#[test]
fn a_node_that_takes_no_work_is_a_failure() {
    let mut facts = facts();
    facts.nodes = Ok(nodes(&["n1"]));
    facts.healths = serde_json::from_value(json!([{"live": true, "ready": false, "reasons": ["draining"], "warnings":
        ["queue main is full"], "node": "n1", "version": "0.1.0", "queues": [],
        "counters": {"stale_reads": 2, "overdue_restored": 1_234}}]))
    .unwrap();
    assert_eq!(of(&facts, "nodes"), ["failure node n1 is not ready: draining", "warning node n1: queue main is full"]);
    let healths = std::mem::take(&mut facts.healths);
    assert_eq!(of(&facts, "nodes"), ["warning node n1 does not answer"]);
    facts.unanswered = vec!["n1".to_owned()];
    assert_eq!(of(&facts, "nodes"), ["warning how node n1 is doing is not known: requests got no answer"]);
    (facts.healths, facts.unanswered) = (healths, Vec::new());
    assert_eq!(
        of(&facts, "counters"),
        [
            "note since the nodes started, records were read that were older than their job: 2",
            "note since the nodes started, schedules had not fired and were made up for: 1,234"
        ]
    );
    facts.healths[0].warnings = vec![
        "queue main is full at priority 5: its due jobs wait".to_owned(),
        "stream LONGSHORE_EVENTS has other bounds than this node's settings: max_bytes is 1, not 2".to_owned(),
        "short of memory (97 % of its memory is in use): gives jobs to one in 8 of its workers".to_owned(),
    ];
    let remedies: Vec<_> = facts
        .findings()
        .into_iter()
        .filter_map(|finding| finding.text.starts_with("node n1: ").then_some(finding.remedy).flatten())
        .collect();
    let each = [("larger storage", 0), ("more memory", 1), ("same storage settings", 2)];
    assert!(each.iter().all(|(words, at)| remedies[*at].contains(words)), "{remedies:?}");
    let faults = facts.findings().into_iter().filter(|finding| finding.level > Level::Note);
    assert!(faults.into_iter().all(|finding| finding.remedy.is_some()));
}

#[test]
fn nodes_that_answer_nothing_are_named_and_none_that_is_known_is_a_failure() {
    let mut facts = facts();
    assert!(of(&facts, "nodes")[0].starts_with("failure a node answers, and none is known to be there"));
    facts.nodes = Err("no answer within 3s".to_owned());
    assert_eq!(of(&facts, "nodes"), ["failure no answer within 3s"]);
    facts.clocks = vec![("n1".to_owned(), Skew { ahead_ms: 0, within_ms: 1 })];
    assert_eq!(of(&facts, "nodes"), ["failure no answer within 3s; there were last: n1"]);
}

#[test]
fn what_keeps_a_node_from_making_its_streams_is_said_before_its_start() {
    let mut facts = facts();
    facts.streams = Ok(vec![("LONGSHORE_DLQ".to_owned(), None)]);
    facts.monitored = Some(Ok(Monitored {
        config: MonitoredConfig { max_storage: 30 << 20, ..MonitoredConfig::default() },
        reserved_storage: 10 << 20,
        ..Monitored::default()
    }));
    (facts.has_settings, facts.replicas, facts.wanted_bytes) = (true, Some(3), 21 << 20);
    assert_eq!(
        of(&facts, "storage"),
        ["failure the server has 20.0 MiB left to reserve, and streams that are missing need 21.0 MiB"]
    );
    assert_eq!(of(&facts, "jetstream"), ["warning storage.replicas is 3, and this server belongs to no cluster"]);
    facts.server.cluster = Some("c".to_owned());
    facts.wanted_bytes = 20 << 20;
    assert_eq!(of(&facts, "jetstream"), ["ok 0 streams, 0 consumers"]);
    assert_eq!(of(&facts, "storage"), ["ok no stream is nearly full"]);
    facts.account = Err(Unanswered("JetStream system temporarily unavailable".to_owned()));
    assert!(facts.findings()[1].remedy.as_ref().unwrap().starts_with("more than half of the cluster's servers"));
}

#[test]
fn what_is_true_of_many_streams_is_said_once() {
    let mut facts = facts();
    let streams = ["A", "B", "C", "D"].map(|name| stream(name, 3, 0));
    facts.streams = Ok(streams.into());
    for (_, found) in facts.streams.as_mut().unwrap() {
        found.as_mut().unwrap().lagging = vec!["s1".to_owned()];
    }
    assert_eq!(of(&facts, "streams"), ["warning A, B, C and 1 more: not in step: s1"]);
}

/// Each as the part of a node that finds it says it.
#[test]
fn each_reason_and_each_warning_has_a_remedy_of_its_own() {
    for (reason, word) in [
        ("a supervisor of this node does not answer: what dies is not started again", "restart"),
        ("not connected to NATS", "once it has its connection"),
        ("not connected to NATS: the server refuses its login (authorization violation)", "NATS_CREDS"),
        ("draining", "about to end"),
        ("3 handlers neither end in time nor react to their cancellation", "cancellation"),
        ("the stream of run records is full (storage.runs_max_records)", "completed_max_age"),
        ("the NATS server has no room left, and stores nothing more", "max_file_store"),
        ("no server answers for the consumer of LONGSHORE_JOBS_main_P5", "no leader"),
        ("NATS stores nothing in LONGSHORE_EVENTS (for 7 s), and does not say why: its disk may be full", "free space"),
        ("this machine's clock is 31.0 s ahead of the NATS server's, by which jobs go: have both set by NTP", "NTP"),
        ("stream LONGSHORE_EVENTS is gone: a node makes it again, empty, as long as there are run records", "wait"),
        ("stream LONGSHORE_EVENTS was altered: discard is Old, not New; a node sets it right at its start", "altered"),
        ("stream KV_longshore_control is gone, and with it what it says about jobs: restore it", "pauses"),
        ("something new", "What log lines mean"),
    ] {
        let remedy = remedies::of_reason(reason);
        assert!(remedy.contains(word), "{reason}: {remedy}");
    }
    for (warning, word) in [
        ("queue main is full at priority 5: its due jobs wait", "jobs_max_messages"),
        ("no node serves queue bulk since 2026-11-21T12:00:00.000Z: 7 jobs wait in it", "names this queue"),
        ("LONGSHORE_JOBS_main_P5 holds 40 jobs and has delivered none for 15 s, though nodes ask", "that server"),
        ("a job of queue main came 12.3 s after it was stored, though this node asked for jobs", "Slow deliveries"),
        ("this machine's clock is 3.0 s behind the NATS server's, by which jobs go: have both set by NTP", "NTP"),
        ("short of memory (97 % of its memory is in use): gives jobs to one in 8 of its workers", "more memory"),
        ("1 job was not started in the last two minutes: too little time was left to it", "later deadline"),
        ("stream LONGSHORE_DLQ has other bounds than this node's settings: max_age is 1", "same storage settings"),
        ("stream LONGSHORE_PARKED is full: it holds 3 messages, 9 bytes, and refuses what is published", "parked jobs"),
        ("stream LONGSHORE_JOBS_main_P5 is full: it holds 3 messages, 9 bytes, and refuses what comes", "a full lane"),
        ("stream KV_longshore_concurrency is full: it holds 3 messages, 9 bytes", "concurrency_max_bytes"),
        ("stream KV_longshore_control is full: it holds 3 messages, 9 bytes", "control_max_bytes"),
        ("stream KV_longshore_idempotency is full: it holds 3 messages, 9 bytes", "Storage is reserved"),
        ("stream LONGSHORE_DLQ had been deleted and was made again, empty, at 2026-11-21T12:00:00Z", "STREAM.DELETE"),
        ("stream LONGSHORE_REPLIES is gone: until a node makes it again, a handler's reply", "max_memory_store"),
        ("stream LONGSHORE_REPLIES was altered: no_ack is false, not true; a node sets it right", "altered"),
        ("bucket longshore_concurrency has no room for more keys: jobs wait; raise storage.x", "that setting"),
        ("bucket longshore_checkpoints has no room for more keys: new steps are refused", "many steps"),
        ("2 jobs were too large for NATS since this node started, whose max_payload is 9 bytes now", "max_payload"),
        ("no handler for call of tenant default since 2026-11-21T12:00:00.000Z: handlers subscribe", "start a handler"),
        ("jobs are answered twice on longshore.work.*.mail (3 so far): each is done twice", "queue group"),
        ("what is stored under $KV.b.a is not what nodes write, and is left alone: no", "newer version"),
        ("3 more values that nodes did not write, or more", "newer version"),
        ("something new", "What log lines mean"),
    ] {
        let remedy = remedies::of_warning(warning);
        assert!(remedy.contains(word), "{warning}: {remedy}");
    }
}

#[test]
fn what_several_nodes_warn_of_is_said_once_and_a_type_without_handler_only_while_its_jobs_wait() {
    let mut facts = facts();
    let health = |node: &str| {
        json!({"live": true, "ready": true, "reasons": [], "node": node, "version": "0.1.0", "queues": [], "counters": {},
            "warnings": ["short of memory", "no handler for call of tenant default since 2026-11-21T12:00:00Z"]})
    };
    facts.healths = serde_json::from_value(json!([health("n1"), health("n2")])).unwrap();
    facts.nodes = Ok(nodes(&["n1", "n2"]));
    assert_eq!(of(&facts, "nodes"), ["warning nodes n1, n2: short of memory"]);
    let missing = |name: &str, jobs: u64, never: bool| {
        json!({"type": name, "tenant": "acme", "since": "2026-11-21T12:00:00Z", "looked_at": "2026-11-21T12:00:00Z",
            "subject": format!("longshore.work.acme.{name}"), "jobs": jobs, "never_served": never})
    };
    let types = json!([missing("mail", 1_200, false), missing("gone", 0, false), missing("mial", 1, true)]);
    facts.no_handler = serde_json::from_value(types).unwrap();
    let about = |name: &str| {
        format!(
            "warning no handler for {name} of tenant acme since 2026-11-21T12:00:00.000Z: handlers subscribe to longshore.work.acme.{name}"
        )
    };
    assert_eq!(
        of(&facts, "handlers"),
        [
            format!("{}; jobs that wait: 1,200", about("mail")),
            format!("{}; none was ever online; jobs that wait: 1", about("mial"))
        ]
    );
    let remedies: Vec<_> =
        facts.findings().into_iter().filter(|found| found.check == "handlers").map(|found| found.remedy).collect();
    assert!(remedies[0].as_ref().unwrap().starts_with("start a handler that subscribes"), "{remedies:?}");
    assert!(remedies[1].as_ref().unwrap().contains("misspelt"), "{remedies:?}");
}

#[test]
fn a_pause_that_keeps_jobs_waiting_is_said() {
    let mut facts = facts();
    let queue = |more: Value| {
        let mut queue = json!({"concurrency": 64, "depth": 0, "depths": {}, "oldest_age_ms": null, "paused": false,
            "queue": "main", "running": 0, "served": true});
        queue.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        queue
    };
    let queues = [
        queue(json!({"queue": "idle", "paused": true})),
        queue(json!({"queue": "bulk", "paused": true, "depth": 1_210, "running": 10})),
        queue(json!({"depth": 3, "paused_types": [{"type": "call"}]})),
    ];
    facts.queues = queues.map(|queue| serde_json::from_value(queue).unwrap()).to_vec();
    assert_eq!(
        of(&facts, "queues"),
        [
            "warning queue bulk is paused; jobs that wait there: 1,200",
            "note type call is paused in queue main; jobs of all types that wait there: 3"
        ]
    );
}
