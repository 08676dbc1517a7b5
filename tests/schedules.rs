//! A recurring schedule starts a run at each of its times: never early, never twice, whichever node dies.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use longshore_harness::history::Interruption;
use longshore_harness::{NodeBuilder, World, eventually};
use serde_json::{Value, json};

use crate::{WITHIN, in_future, rules, times, workers, world};

const SECOND: i64 = 1_000;

/// The due time in the id of a schedule's run, in milliseconds; `None`: the run is not this schedule's.
fn due_of(run: &str, id: &str) -> Option<i64> {
    run.strip_prefix(id)?.strip_prefix('-')?.parse().ok()
}

/// The due times of a schedule's runs that have ended as completed, each with how often that was published.
async fn completed(world: &World, id: &str) -> BTreeMap<i64, usize> {
    let mut found = BTreeMap::new();
    for logged in world.event_log("default").await {
        if let (Some(due), true) = (due_of(&logged.event.run_id, id), logged.event.event.is_end()) {
            *found.entry(due).or_default() += 1;
        }
    }
    found
}

/// Waits until that many runs of a schedule have completed; returns their due times.
async fn fired(world: &World, id: &str, wanted: usize) -> BTreeSet<i64> {
    let found = eventually("firings", WITHIN, async || {
        let found = completed(world, id).await;
        if found.len() >= wanted { Ok(found) } else { Err(format!("{} of {wanted}", found.len())) }
    });
    found.await.into_keys().collect()
}

/// The due times without a gap between the first and the last, `every` milliseconds apart.
#[track_caller]
fn assert_complete(due: &BTreeSet<i64>, every: i64) {
    let (first, last) = (*due.first().unwrap(), *due.last().unwrap());
    let expected: BTreeSet<i64> = (0..=(last - first) / every).map(|number| first + number * every).collect();
    assert_eq!(*due, expected, "a time is missing, or one too many");
    assert_eq!(first % every, 0);
}

/// Pauses a schedule, and waits until every time from its first to its last firing has its run, which has ended.
async fn paused_and_complete(world: &World, id: &str, every: i64) {
    let paused = world.request("schedules.pause", json!({"id": id})).await;
    let last = due_of(paused["last_run"]["run_id"].as_str().unwrap(), id).unwrap();
    let first = *fired(world, id, 1).await.first().unwrap();
    for number in 0..=(last - first) / every {
        world.wait_as("default", &format!("{id}-{}", first + number * every), WITHIN).await;
    }
    crate::is_emptied(world).await;
    let all = completed(world, id).await;
    assert!(all.values().all(|ends| *ends == 1), "{all:?}");
    assert_complete(&all.into_keys().collect(), every);
}

/// No event of a run was before the time in its id, and none was handled twice.
async fn assert_sound(world: &World, interruptions: Vec<Interruption>) {
    for logged in world.event_log("default").await {
        let due = logged.event.run_id.rsplit_once('-').and_then(|(_, due)| due.parse::<i64>().ok());
        let due = due.expect("runs of schedules only");
        assert!(logged.event.at.as_millisecond() >= due, "{logged:?} came early");
    }
    let mut history = world.history(&[], Vec::new()).await;
    history.rules = rules(interruptions);
    history.assert_sound();
}

async fn put(world: &World, schedule: Value) -> Value {
    world.request("schedules.put", schedule).await
}

fn node(world: &World) -> NodeBuilder<'_> {
    workers(world.node(), 32).with("node", "lease = '2s'")
}

fn named<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    node(world).name(name)
}

/// Given a schedule, when its times come, then each becomes one run named by that time; and it can be shown, listed,
/// paused, resumed, changed, run beside its times and removed.
#[tokio::test]
async fn a_schedule_starts_a_run_at_each_of_its_times() {
    let world = world().await;
    let node = node(&world).start().await;
    let asked =
        json!({"id": "tick", "cron": "* * * * * *", "type": "echo", "payload": {"b": 1, "a": 0.10}, "tags": ["t"]});
    let made = put(&world, asked.clone()).await;
    assert_eq!(made["next_run"].as_array().unwrap().len(), 5, "{made}");
    let plain =
        json!([made["misfire"], made["overlap"], made["paused"], made["declared"], made["last_run"], made["payload"]]);
    assert_eq!(plain, json!(["one", "allow", false, false, null, {"b": 1, "a": 0.10}]));

    assert_complete(&fired(&world, "tick", 3).await, SECOND);
    let shown = world.request("schedules.get", json!({"id": "tick"})).await;
    let last = shown["last_run"]["run_id"].as_str().unwrap();
    assert_eq!(world.wait(last).await.result, Some(json!({"b": 1, "a": 0.10})));
    let due: jiff::Timestamp = shown["last_run"]["due_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(due_of(last, "tick"), Some(due.as_millisecond()));

    let paused = world.request("schedules.pause", json!({"id": "tick"})).await;
    assert_eq!((&paused["paused"], &paused["next_run"]), (&json!(true), &json!([])));
    let last = paused["last_run"]["run_id"].as_str().unwrap().to_owned();
    let forced = world.request("schedules.run_now", json!({"id": "tick"})).await;
    let forced_run = forced["last_run"]["run_id"].as_str().unwrap();
    assert_ne!(forced_run, last);
    assert_eq!(world.wait(forced_run).await.state, "completed");
    let list = world.request("schedules.list", json!({})).await;
    assert_eq!((list["schedules"].as_array().unwrap().len(), &list["schedules"][0]["paused"]), (1, &json!(true)));
    // It was paused for longer than a time lasts, and nothing came.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    let shown = world.request("schedules.get", json!({"id": "tick"})).await;
    assert_eq!(shown["last_run"]["run_id"].as_str(), Some(forced_run), "it fired while it was paused");

    let resumed = world.request("schedules.resume", json!({"id": "tick"})).await;
    let next: jiff::Timestamp = resumed["next_run"][0].as_str().unwrap().parse().unwrap();
    assert!(
        next > jiff::Timestamp::now() - jiff::SignedDuration::from_secs(1),
        "what a pause skipped is not made up for"
    );
    let changed = put(&world, json!({"id": "tick", "every": "1h", "type": "noop"})).await;
    assert_eq!(changed["created_at"], made["created_at"]);
    let hour: jiff::Timestamp = changed["next_run"][0].as_str().unwrap().parse().unwrap();
    assert_eq!(hour.as_second() % 3_600, 0);

    world.request("schedules.delete", json!({"id": "tick"})).await;
    let gone = world.try_request("default", "schedules.get", json!({"id": "tick"})).await.unwrap_err();
    assert_eq!(gone.code, 404);
    node.stop().await;
    assert_sound(&world, Vec::new()).await;
}

/// Given what cannot be a schedule, when it is put, then the answer is 400 and says what would be right.
#[tokio::test]
async fn what_cannot_be_a_schedule_is_refused_with_the_remedy() {
    let world = world().await;
    let _node = node(&world).start().await;
    let schedule = |more: Value| {
        let mut all = json!({"id": "n", "cron": "0 0 3 * * *", "type": "noop"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    for (more, code, said) in [
        (json!({"cron": "0 3 * *"}), 400, "five or six are needed"),
        (json!({"cron": "0 0 0 30 2 *"}), 400, "matches no time"),
        (json!({"time_zone": "Mars/Base"}), 400, "run a newer longshore"),
        (json!({"every": "5m"}), 400, "every: stands beside cron"),
        (json!({"run_id": "mine"}), 400, "run_id: "),
        (json!({"expires_at": "2030-01-01T00:00:00Z"}), 400, "use expires_in_ms"),
        (json!({"id": "main-p5"}), 400, "derived run id"),
        (json!({"retry": "unknown"}), 400, "there is none; a section [retries.NAME]"),
        (json!({"queue": "nowhere"}), 404, "not declared"),
        (json!({"idempotency_key": "k".repeat(512)}), 400, "idempotency_key: has "),
        (json!({"payload": "x".repeat(70_000)}), 413, "65536 are allowed"),
        (json!({"sate": 1}), 400, "sate: unknown field"),
        (json!({"ends_at": "9999-12-31"}), 400, "ends_at: \"9999-12-31\" is not a valid RFC 3339 time"),
    ] {
        let refused = world.try_request("default", "schedules.put", schedule(more.clone())).await.unwrap_err();
        assert!(refused.code == code && refused.message.contains(said), "{more}: {refused}");
    }
    let refused = world.try_request("_all", "schedules.put", schedule(json!({}))).await.unwrap_err();
    assert_eq!(refused.code, 400);
    let list = world.request("schedules.list", json!({})).await;
    assert_eq!(list["schedules"], json!([]));

    // The last second that can be written stands for "never".
    let made = put(&world, schedule(json!({"ends_at": "9999-12-31T23:59:59Z"}))).await;
    assert_eq!(made["ends_at"], json!("9999-12-31T23:59:59.000Z"));
    let shown = world.request("schedules.get", json!({"id": "n"})).await;
    assert_eq!((&shown["ends_at"], shown["next_run"].as_array().unwrap().len()), (&made["ends_at"], 5), "{shown}");
}

/// Given a zone whose clocks change, when a schedule is put, then the hour that they leave out has no time, and the
/// hour that they repeat has two.
#[tokio::test]
async fn times_follow_the_clocks_of_their_zone() {
    let world = world().await;
    let _node = node(&world).start().await;
    // The 28th of March and the 31st of October 2027: only in these months has 02:30 to be looked at.
    let spring = json!({"id": "spring", "cron": "0 30 2 27-29 3 *", "time_zone": "Europe/Berlin", "type": "noop"});
    let autumn = json!({"id": "autumn", "cron": "0 30 2 31 10 *", "time_zone": "Europe/Berlin", "type": "noop"});
    let (spring, autumn) = (put(&world, spring).await, put(&world, autumn).await);
    let of_2027 = |made: &Value| {
        let all = made["next_run"].as_array().unwrap().iter().map(|at| at.as_str().unwrap().to_owned());
        all.filter(|at| at.starts_with("2027")).collect::<Vec<_>>()
    };
    assert_eq!(of_2027(&spring), ["2027-03-27T01:30:00.000Z", "2027-03-29T00:30:00.000Z"]);
    assert_eq!(of_2027(&autumn), ["2027-10-31T00:30:00.000Z", "2027-10-31T01:30:00.000Z"]);

    // The same rule makes runs: those of both changes of 2025, made up for by a backfill.
    let hourly = json!({"id": "hourly", "cron": "0 30 0-4 * * *", "time_zone": "Europe/Berlin", "type": "noop"});
    put(&world, hourly).await;
    for (from, until, due) in [
        ("2025-03-29T23:00:00Z", "2025-03-30T03:00:00Z", ["23:30", "00:30", "01:30", "02:30"].as_slice()),
        ("2025-10-25T22:00:00Z", "2025-10-26T04:00:00Z", &["22:30", "23:30", "00:30", "01:30", "02:30", "03:30"]),
    ] {
        let span = json!({"id": "hourly", "from": from, "until": until});
        let outcome = world.request("schedules.backfill", span).await;
        assert_eq!(outcome["started"], json!(due.len()), "{outcome}");
        let first: jiff::Timestamp = from.parse().unwrap();
        for (hours, due) in (0..).zip(due) {
            let at = first + jiff::SignedDuration::from_mins(60 * hours + 30);
            assert_eq!(&at.to_string()[11..16], *due);
            let run = format!("hourly-{}", at.as_millisecond());
            assert_eq!(world.wait(&run).await.state, "completed", "{at}");
        }
    }
}

/// Given schedules that are due each second, when the server is killed across due times, then each time has its run,
/// exactly once, and none before its time.
#[tokio::test]
async fn a_server_that_is_killed_across_a_due_time_costs_no_firing_and_doubles_none() {
    let world = world().await;
    let node = node(&world).start().await;
    let other = named(&world, "other").start().await;
    for id in ["a", "b"] {
        // As long as a server may take to come back on a loaded machine.
        put(&world, json!({"id": id, "every": "1s", "type": "noop", "misfire_after_ms": 60_000})).await;
    }
    let mut kills = Vec::new();
    for _ in 0..times("LONGSHORE_TEST_KILLS", 3) {
        let before = fired(&world, "a", 1).await.len();
        fired(&world, "a", before + 2).await;
        kills.push(Interruption { node: None, at: jiff::Timestamp::now() });
        world.server().kill9().await;
        tokio::time::sleep(Duration::from_millis(1_700)).await;
        world.server().restart().await.unwrap();
        fired(&world, "b", before + 4).await;
    }
    for id in ["a", "b"] {
        paused_and_complete(&world, id, SECOND).await;
    }
    node.stop().await;
    other.stop().await;
    assert_sound(&world, kills).await;
}

/// Given a tick that the server forgot while it was down, when a schedule is overdue, then it fires all the same, once.
#[tokio::test]
async fn a_tick_that_the_server_forgot_is_made_up_for() {
    let world = world().await;
    let node = node(&world).start().await;
    put(&world, json!({"id": "rare", "every": "4s", "type": "noop"})).await;
    fired(&world, "rare", 1).await;
    crate::overdue::scheduled(&world, 1).await;
    let stop = Interruption { node: None, at: jiff::Timestamp::now() };
    world.server().stop().await.unwrap();
    crate::overdue::forget_schedules(world.server().dir());
    world.server().restart().await.unwrap();
    assert_complete(&fired(&world, "rare", 3).await, 4 * SECOND);
    crate::logged(node.log(), "recurring schedules were overdue").await;
    node.stop().await;
    assert_sound(&world, vec![stop]).await;
}

/// Given two nodes, when one is killed between any two steps of a firing, or freezes or panics there, then each time
/// has its run, exactly once.
async fn no_firing_is_lost_at(point: &str) {
    let world = world().await;
    let builder = |name: &str| named(&world, name);
    crate::without_node(builder("doomed")).await;
    let other = builder("other").start().await;
    put(&world, json!({"id": "tick", "every": "1s", "type": "noop", "misfire_after_ms": 120_000})).await;
    let mut interruptions = Vec::new();
    for number in 0..times("LONGSHORE_TEST_KILLS", 1) {
        let action = format!("{point}=kill@{}", 1 + number % 4);
        let status = match builder("doomed").env("LONGSHORE_FAIL_POINTS", &action).try_start().await {
            Ok(node) => {
                // It shares the ticks with the other node, which is away for the while.
                other.sigstop();
                let status = node.wait_exit(WITHIN).await;
                other.sigcont();
                status
            }
            Err(refusal) => refusal.status,
        };
        assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
        interruptions.push(Interruption { node: Some("doomed".to_owned()), at: jiff::Timestamp::now() });
        let before = fired(&world, "tick", 1).await.len();
        fired(&world, "tick", before + 3).await;
    }
    let frozen = builder("doomed").env("LONGSHORE_FAIL_POINTS", &format!("{point}=stop")).start().await;
    let stopped =
        eventually("a frozen node", WITHIN, async || if frozen.is_frozen() { Ok(()) } else { Err("it runs") });
    stopped.await;
    interruptions.push(Interruption { node: Some("doomed".to_owned()), at: jiff::Timestamp::now() });
    let before = fired(&world, "tick", 1).await.len();
    fired(&world, "tick", before + 5).await;
    frozen.sigcont();
    fired(&world, "tick", before + 8).await;
    paused_and_complete(&world, "tick", SECOND).await;
    frozen.stop().await;
    other.stop().await;
    assert_sound(&world, interruptions).await;
}

#[tokio::test]
async fn a_firing_that_was_cut_off_after_its_tick_is_finished() {
    no_firing_is_lost_at("after-tick").await;
}

#[tokio::test]
async fn a_firing_that_was_cut_off_after_its_decision_is_finished() {
    no_firing_is_lost_at("after-firing").await;
}

#[tokio::test]
async fn a_firing_that_was_cut_off_after_its_run_is_finished() {
    no_firing_is_lost_at("after-firing-run").await;
}

/// Given times that were missed while no node was there, when a node comes back, then they have one run together, or
/// none, as the schedule says; and the later times have theirs.
#[tokio::test]
async fn missed_times_have_one_run_together_or_none() {
    let world = world().await;
    let node = node(&world).start().await;
    for misfire in ["one", "skip"] {
        let schedule =
            json!({"id": misfire, "every": "1s", "type": "noop", "misfire": misfire, "misfire_after_ms": 1_500});
        put(&world, schedule).await;
        fired(&world, misfire, 2).await;
    }
    node.kill9().await;
    let killed = jiff::Timestamp::now().as_millisecond();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let back = jiff::Timestamp::now().as_millisecond();
    node.restart().await;
    for misfire in ["one", "skip"] {
        let before = completed(&world, misfire).await.len();
        fired(&world, misfire, before + 3).await;
        let away: Vec<i64> = completed(&world, misfire).await.into_keys().collect();
        // The last two before the end may have been on their way.
        let missed = away.iter().filter(|due| **due > killed + SECOND && **due < back - 2 * SECOND).count();
        assert_eq!(missed, 0, "{misfire}: {away:?} from {killed} to {back}");
        let shown = world.request("schedules.get", json!({"id": misfire})).await;
        let reason = shown["last_skipped"]["reason"].as_str();
        assert_eq!(reason, (misfire == "skip").then_some("missed"), "{shown}");
        let together = away.iter().filter(|due| (killed - SECOND..=killed + SECOND).contains(due)).count();
        assert!(misfire == "skip" || together >= 1, "no run stands for those that were missed: {away:?} from {killed}");
    }
    node.stop().await;
}

/// Given a run that takes longer than the time between two firings, when the schedule skips overlaps, then no two of
/// its runs are there at once; when it allows them, they are.
#[tokio::test]
async fn a_schedule_that_skips_overlaps_has_one_run_at_a_time() {
    let world = world().await;
    let node = node(&world).start().await;
    let payload = json!({"ms": 2_500});
    put(&world, json!({"id": "one", "every": "1s", "type": "sleep", "payload": payload, "overlap": "skip"})).await;
    put(&world, json!({"id": "many", "every": "1s", "type": "sleep", "payload": payload})).await;
    let many = fired(&world, "many", 4).await;
    let one = fired(&world, "one", 2).await;
    assert_complete(&many, SECOND);
    let due: Vec<i64> = one.iter().copied().collect();
    assert!(due.windows(2).all(|two| two[1] - two[0] >= 2_500), "{due:?}");
    let shown = world.request("schedules.get", json!({"id": "one"})).await;
    assert_eq!(shown["last_skipped"]["reason"], json!("overlap"), "{shown}");
    node.stop().await;
}

/// Given a schedule whose job the settings take no more, when it is to run now, then the answer is that of `submit`,
/// and the schedule stays as it was.
#[tokio::test]
async fn a_job_that_is_taken_no_more_cannot_be_run_now() {
    let world = world().await;
    let first = node(&world).with("retries.quick", "delays = ['1s']").start().await;
    put(&world, json!({"id": "n", "every": "1h", "type": "noop", "retry": "quick", "paused": true})).await;
    let run = world.request("schedules.run_now", json!({"id": "n"})).await;
    first.stop().await;
    let second = node(&world).start().await;
    let refused = world.try_request("default", "schedules.run_now", json!({"id": "n"})).await.unwrap_err();
    assert!(refused.code == 400 && refused.message.contains("a section [retries.NAME]"), "{refused}");
    assert_eq!(world.request("schedules.get", json!({"id": "n"})).await, run);
    second.stop().await;
}

/// Given a bucket of schedules that is nearly full, when a schedule is put, then it is refused; those that are there
/// can be changed and go on, as a firing needs room.
#[tokio::test]
async fn new_schedules_leave_room_for_the_firings_of_others() {
    let world = world().await;
    let node = node(&world).start().await;
    let schedule = |id: &str, every: &str| json!({"id": id, "every": every, "type": "noop", "paused": true});
    put(&world, schedule("first", "1h")).await;
    // A little more than four fifths of 128 MiB, under keys that no schedule has.
    for number in 0..216 {
        let subject = format!("$KV.longshore_schedules.filler.of.{number}");
        let stored = world.jetstream().publish(subject, vec![b'x'; 500_000].into()).await.unwrap();
        stored.await.unwrap();
    }
    let mut ids = (0..).map(|number| format!("later{number}"));
    let refused = eventually("a schedule that is refused", WITHIN, async || {
        let asked = schedule(&ids.next().unwrap(), "1h");
        match world.try_request("default", "schedules.put", asked).await {
            Err(error) if error.code == 503 => Ok(error.message),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(refused.await.contains("the bucket of schedules is full"));
    put(&world, schedule("first", "2h")).await;
    let forced = world.request("schedules.run_now", json!({"id": "first"})).await;
    assert_eq!(world.wait(forced["last_run"]["run_id"].as_str().unwrap()).await.state, "completed");
    node.stop().await;
}

/// Given a span of time, when it is backfilled, then each due time in it has one run, also if the call is repeated;
/// without an end it ends now.
#[tokio::test]
async fn a_backfill_starts_a_run_for_each_due_time_of_its_span() {
    let world = world().await;
    let node = node(&world).start().await;
    put(&world, json!({"id": "daily", "cron": "0 0 3 * * *", "type": "noop", "paused": true})).await;
    let span = json!({"id": "daily", "from": "2026-01-01T00:00:00Z", "until": "2026-01-31T23:59:59Z"});
    let mut counted = span.clone();
    counted["dry_run"] = json!(true);
    assert_eq!(world.request("schedules.backfill", counted).await["started"], json!(31));
    let filled = world.request("schedules.backfill", span.clone()).await;
    assert_eq!((&filled["started"], &filled["deduplicated"]), (&json!(31), &json!(0)), "{filled}");
    let again = world.request("schedules.backfill", span).await;
    assert_eq!((&again["started"], &again["deduplicated"]), (&json!(0), &json!(31)), "{again}");
    assert_eq!(fired(&world, "daily", 31).await.len(), 31);
    // Without an end the span ends now, as the node has it.
    let three_days_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(72);
    let open = json!({"id": "daily", "from": three_days_ago.to_string(), "dry_run": true});
    assert_eq!(world.request("schedules.backfill", open).await["started"], json!(3));
    let ahead = json!({"id": "daily", "from": "2026-01-01T00:00:00Z", "until": in_future(Duration::from_secs(600))});
    let refused = world.try_request("default", "schedules.backfill", ahead).await.unwrap_err();
    assert!(refused.message.contains("lies ahead"), "{refused}");
    let long = json!({"id": "daily", "from": "2000-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"});
    let refused = world.try_request("default", "schedules.backfill", long.clone()).await.unwrap_err();
    assert!(refused.message.contains("more than 1000 times"), "{refused}");
    // The span that it names is taken, and is as long as may be.
    let (_, last) = refused.message.split_once("up to ").unwrap();
    let first = json!({"id": "daily", "from": long["from"], "until": last.replace(" first", ""), "dry_run": true});
    assert_eq!(world.request("schedules.backfill", first).await["started"], json!(1_000), "{refused}");
    node.stop().await;
    assert_sound(&world, Vec::new()).await;
}

/// Given schedules in the configuration, when a node starts with a file in which one was changed and one removed, then
/// the cluster has them as the file does, and what a client made stays.
#[tokio::test]
async fn declared_schedules_are_as_the_file_says() {
    let world = world().await;
    let hourly = "cron = '0 0 * * * *'\ntype = 'echo'\npayload = { report = 'daily', parts = [1, 0.5] }";
    let first = node(&world).with("schedules.changed", hourly).with("schedules.removed", hourly).start().await;
    let by_id = async || {
        let list = world.request("schedules.list", json!({})).await;
        let of = |schedule: &Value| (schedule["id"].as_str().unwrap().to_owned(), schedule.clone());
        list["schedules"].as_array().unwrap().iter().map(of).collect::<BTreeMap<_, _>>()
    };
    let all = by_id().await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["changed", "removed"]);
    assert_eq!(all["changed"]["payload"], json!({"report": "daily", "parts": [1, 0.5]}));
    assert_eq!(all["changed"]["declared"], json!(true));
    put(&world, json!({"id": "mine", "every": "1h", "type": "noop"})).await;
    first.stop().await;

    let second = named(&world, "second").with("schedules.changed", &hourly.replace("0 0 *", "0 30 *"));
    let second = second.start().await;
    let all = by_id().await;
    assert_eq!(all.keys().collect::<Vec<_>>(), ["changed", "mine"]);
    assert_eq!(all["changed"]["cron"], json!("0 30 * * * *"));
    let changed = crate::logged(second.log(), "has changed a recurring schedule").await;
    assert!(changed.contains('→'), "{changed}");
    crate::logged(second.log(), "has removed a recurring schedule").await;
    second.stop().await;

    // A file that says nothing of schedules removes nothing of others, and all of its own.
    let third = named(&world, "third").start().await;
    assert_eq!(by_id().await.keys().collect::<Vec<_>>(), ["changed", "mine"]);
    third.stop().await;
    let again = named(&world, "second").start().await;
    assert_eq!(by_id().await.keys().collect::<Vec<_>>(), ["mine"]);
    again.stop().await;
}

/// Given declared schedules, one of which a client has changed and one removed, when somebody writes over a third, then
/// that one is made again, and the others stay as the client has them.
#[tokio::test]
async fn what_a_client_makes_of_a_declared_schedule_stays_while_nodes_run() {
    let world = world().await;
    let hourly = "every = '1h'\ntype = 'noop'";
    let node = node(&world).with("schedules.changed", hourly).with("schedules.removed", hourly);
    let _node = node.with("schedules.written_over", hourly).start().await;
    put(&world, json!({"id": "changed", "every": "2h", "type": "noop"})).await;
    world.request("schedules.delete", json!({"id": "removed"})).await;
    let key = "$KV.longshore_schedules.default.written_over";
    world.jetstream().publish(key, "{}".into()).await.unwrap().await.unwrap();
    eventually("the schedule that was written over", WITHIN, async || {
        world.try_request("default", "schedules.get", json!({"id": "written_over"})).await.map(drop)
    })
    .await;
    let list = world.request("schedules.list", json!({})).await;
    let each = list["schedules"].as_array().unwrap().iter().map(|one| (one["id"].as_str(), one["every"].as_str()));
    let each: BTreeSet<_> = each.collect();
    assert_eq!(each, BTreeSet::from([(Some("changed"), Some("2h")), (Some("written_over"), Some("1h"))]));
}

/// Given a file with a schedule that is refused, as its queue is not declared, when a node starts, then the others of
/// the file fire, also after their ticks were lost; and that one does once its queue is there.
#[tokio::test]
async fn a_declared_schedule_that_is_refused_holds_up_no_other() {
    let world = world().await;
    let each_second = "every = '1s'\ntype = 'noop'";
    let node = node(&world).with("schedules.refused", &format!("{each_second}\nqueue = 'later'"));
    let node = node.with("schedules.sound", each_second).start().await;
    let before = fired(&world, "sound", 1).await.len();
    let warning = crate::logged(node.log(), "the schedules of the configuration are not all in place").await;
    assert!(warning.contains("refused of tenant default: queue: "), "{warning}");
    world.jetstream().get_stream("LONGSHORE_SCHEDULES").await.unwrap().purge().await.unwrap();
    fired(&world, "sound", before + 3).await;
    world.request_as("_all", "queues.put", json!({"queue": "later", "concurrency": 1})).await;
    fired(&world, "refused", 1).await;
}

/// Given a schedule that its node cannot read, as a newer one wrote it, when it is due, then its tick waits, and it
/// fires once it can be read.
#[tokio::test]
async fn the_tick_of_a_schedule_that_cannot_be_read_is_kept() {
    let world = world().await;
    let node = node(&world).start().await;
    put(&world, json!({"id": "tick", "every": "1s", "type": "noop"})).await;
    let (key, jetstream) = ("$KV.longshore_schedules.default.tick", world.jetstream());
    let bucket = jetstream.get_stream("KV_longshore_schedules").await.unwrap();
    let stored = bucket.get_last_raw_message_by_subject(key).await.unwrap();
    let write = async |value: Vec<u8>| jetstream.publish(key, value.into()).await.unwrap().await.unwrap();
    write(b"{}".to_vec()).await;
    crate::logged(node.log(), "cannot fire yet: this node cannot read it").await;
    let before = completed(&world, "tick").await.len();
    write(stored.payload.to_vec()).await;
    fired(&world, "tick", before + 2).await;
}

/// Given many schedules of each second, when they fire for a while, then every schedule has every second, once.
#[tokio::test]
async fn many_schedules_of_each_second_miss_none() {
    let world = world().await;
    let (count, seconds) = (times("LONGSHORE_TEST_SCHEDULES", 50), times("LONGSHORE_TEST_SECONDS", 5));
    let node = workers(world.node(), 64).start().await;
    let end = jiff::Timestamp::now().as_second() + 3 + i64::try_from(seconds + count / 100).unwrap();
    let ends_at = jiff::Timestamp::from_second(end).unwrap().to_string();
    let mut started = BTreeMap::new();
    for number in 0..count {
        let id = format!("s{number}");
        let made = put(
            &world,
            json!({"id": id, "every": "1s", "type": "noop", "misfire_after_ms": 600_000, "ends_at": ends_at}),
        );
        started.insert(id, made.await["next_run"][0].as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
    }
    let within = Duration::from_secs(60 + 4 * seconds as u64);
    let wanted: i64 = started.values().map(|first| end - first.as_second() + 1).sum();
    eventually("every firing", within, async || {
        let ended = world.event_log("default").await.iter().filter(|logged| logged.event.event.is_end()).count();
        if ended >= usize::try_from(wanted).unwrap() { Ok(()) } else { Err(format!("{ended} of {wanted}")) }
    })
    .await;
    let mut due: BTreeMap<String, BTreeMap<i64, usize>> = BTreeMap::new();
    for logged in world.event_log("default").await {
        let (id, at) = logged.event.run_id.rsplit_once('-').unwrap();
        if logged.event.event.is_end() {
            *due.entry(id.to_owned()).or_default().entry(at.parse().unwrap()).or_default() += 1;
        }
    }
    let mut firings = 0;
    for (id, first) in &started {
        let of = &due[id];
        assert!(of.values().all(|ends| *ends == 1), "{id}: {of:?}");
        assert_complete(&of.keys().copied().collect(), SECOND);
        assert_eq!(
            (of.keys().next(), of.keys().last()),
            (Some(&first.as_millisecond()), Some(&(end * SECOND))),
            "{id}"
        );
        firings += of.len();
    }
    println!("{count} schedules of each second: {firings} firings, each once; node: {:?}", node.usage());
    node.stop().await;
    assert_sound(&world, Vec::new()).await;
}
