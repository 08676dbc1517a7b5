//! A user at a terminal lists dead letters, replays and discards them, cancels and erases runs.

use std::process::Stdio;
use std::time::Duration;

use longshore_harness::{ROOM, World, eventually};
use longshore_natsd::Options;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{AT_ONCE, served_by, use_binary, workers, world};

/// The output of a command, and its exit code.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }

    /// The same, asserting that the command succeeded.
    #[track_caller]
    fn well(self) -> Self {
        assert_eq!(self.code, 0, "{} {}", self.out, self.err);
        self
    }
}

/// Runs `longshore` with the words of `line` as arguments.
pub(crate) async fn say(world: &World, line: &str) -> Said {
    let output = world.command(line.split_whitespace()).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

async fn die(world: &World, job_type: &str, count: usize) -> Vec<String> {
    let payloads = (0..count).map(|n| json!({"times": 9, "n": n}));
    let receipts = world.publish(job_type).header("X-Mine", "1").many(payloads).await;
    let runs: Vec<String> = receipts.into_iter().map(|receipt| receipt.run_id).collect();
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "dead");
    }
    runs
}

/// A type that fails as many times as its payload says, with one attempt per round.
fn flaky() -> String {
    served_by("fail", &format!("max_attempts = 1\n{AT_ONCE}"))
}

/// Given payloads that no parsed value can hold, when they are submitted at a terminal, then they and their results
/// arrive unchanged; the error for a payload beyond the server's limit says that it is too large.
#[tokio::test]
async fn a_payload_is_sent_and_shown_as_it_was_written() {
    let world = world().await;
    let _node = world.node().start().await;
    for payload in ["12345678901234567890123", "0.10", r#"{"b":1,"a":1e999}"#, "null"] {
        let said = world.command(["submit", "echo", payload, "--wait=30s", "--json"]).output().await.unwrap();
        let (out, err) = (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap());
        assert!(payload == "null" || out.contains(&format!(r#""result":{payload},"#)), "{payload}: {out} {err}");
        assert!(said.status.success(), "{err}");
        let said = world.command(["submit", "echo", payload, "--wait=30s"]).output().await.unwrap();
        let out = String::from_utf8(said.stdout).unwrap();
        assert!(payload == "null" || out.contains(payload), "for people, too: {out}");
    }
    for wrong in [["nodes", "--namespace", "Shop"], ["nodes", "--tenant", "a b"]] {
        let said = world.command(wrong).output().await.unwrap();
        assert_eq!(said.status.code(), Some(2), "{wrong:?}");
    }
    let said = world.command(["nodes"]).env("LONGSHORE_NAMESPACE", "my_shop").output().await.unwrap();
    assert_eq!(said.status.code(), Some(2), "{}", String::from_utf8_lossy(&said.stderr));
    let mut large = world.command(["submit", "echo", "-"]);
    let mut large = large.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = large.stdin.take().unwrap();
    stdin.write_all(format!("\"{}\"", "x".repeat(1_100_000)).as_bytes()).await.unwrap();
    drop(stdin);
    let said = large.wait_with_output().await.unwrap();
    let err = String::from_utf8(said.stderr).unwrap();
    assert!(err.contains("the request has 1100") && err.contains("1048576") && !err.contains("start a node"), "{err}");
    assert_eq!(said.status.code(), Some(1));
}

/// Given a file of jobs, one per line, when it is submitted twice, then each line is one run, with the options where it
/// says nothing itself, a line that is wrong is named, and the program fails because of it.
#[tokio::test]
async fn many_jobs_are_submitted_from_lines() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut lines: Vec<String> =
        (0..1_200).map(|n| json!({"payload": n, "run_id": format!("line-{n}")}).to_string()).collect();
    lines[700] = r#"{"payload": 1, "prio": 3}"#.to_owned();
    lines[300] = r#"{"payload": "M~ller"}"#.to_owned();
    let file = world.dir().join("jobs.jsonl");
    // Some editors begin a file with a byte order mark, and old programs write another encoding than UTF-8.
    let bytes = format!("\u{feff}{}", lines.join("\n")).into_bytes().into_iter();
    let bytes: Vec<u8> = bytes.map(|byte| if byte == b'~' { 0xfc } else { byte }).collect();
    std::fs::write(&file, bytes).unwrap();
    let line = format!("submit echo --tag nightly --lines {}", file.display());
    for known in ["0 of them not new", "1,198 of them not new"] {
        let said = say(&world, &line).await;
        assert_eq!(said.code, 1, "{}", said.err);
        assert_eq!(said.out.trim(), format!("1,198 submitted, {known}, 2 refused"));
        assert!(said.err.contains("refused: line 701: ") && said.err.contains("prio"), "{}", said.err);
        assert!(said.err.contains("refused: line 301: the line is not UTF-8"), "{}", said.err);
    }
    for n in [0, 699, 701, 1_199] {
        let run = world.wait(&format!("line-{n}")).await;
        assert_eq!(run.state, "completed");
        let shown = say(&world, &format!("runs get line-{n} --json")).await.well().json();
        assert_eq!((&shown["tags"], &shown["result"]), (&json!(["nightly"]), &json!(n)));
    }

    let ended = say(&world, "events --since 1h --event completed --json").await.well();
    let mut logged: Vec<&str> = ended.out.lines().collect();
    logged.sort_unstable();
    logged.dedup();
    assert_eq!(logged.len(), 1_198, "from the log, though nobody listened: {}", ended.err);
    let one = say(&world, "events --since 1h --until 0s --run line-3").await.well();
    let names: Vec<&str> = one.out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names, ["enqueued", "started", "completed"]);
}

/// Given a file of large jobs, one of them beyond the server's limit for a message, when it is submitted, then that
/// line is named, and the others are submitted, though a few together are too large as well.
#[tokio::test]
async fn a_line_that_is_too_large_does_not_stop_the_others() {
    use_binary();
    let extra = "max_payload: 262144".to_owned();
    let world = World::with(Options { max_file: ROOM, extra, ..Options::default() }).await;
    let _node = world.node().start().await;
    let line = |kilobytes: usize| json!({"payload": "x".repeat(kilobytes * 1_000)}).to_string();
    let file = world.dir().join("jobs.jsonl");
    std::fs::write(&file, [100, 300, 100, 100].map(line).join("\n")).unwrap();
    let said = say(&world, &format!("submit noop --lines {}", file.display())).await;
    assert_eq!((said.code, said.out.trim()), (1, "3 submitted, 0 of them not new, 1 refused"), "{}", said.err);
    assert!(said.err.contains("refused: line 2: the request has 300"), "{}", said.err);
}

/// Given jobs that are over, when the event log is asked for, then the answer ends with the log, also where it has
/// nothing; with `--follow` it goes on with what happens next.
#[tokio::test]
async fn an_extract_of_the_event_log_ends_and_a_follower_goes_on() {
    let world = world().await;
    let _node = world.node().start().await;
    let empty = tokio::time::timeout(Duration::from_secs(60), say(&world, "events --since 1h")).await;
    assert_eq!(empty.expect("the command ends").well().out, "");
    say(&world, "submit echo 1 --run-id first --wait").await.well();
    // Its end is in the record before it is in the log.
    let mut follower = world.command("events --since 1h --follow --event completed".split(' '));
    let mut follower = follower.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().contains("first"));
    let extract = say(&world, "events --since 1h --event completed").await.well();
    assert_eq!(extract.out.lines().count(), 1, "{}", extract.out);
    say(&world, "submit echo 1 --run-id second --wait").await.well();
    assert!(lines.next_line().await.unwrap().unwrap().contains("second"));
}

/// Given a follower of the event log, when the server is killed and starts again, then the follower goes on behind the
/// last event that it has shown.
#[tokio::test]
async fn a_follower_of_the_event_log_outlives_a_restart_of_the_server() {
    let world = world().await;
    let _node = world.node().start().await;
    say(&world, "submit echo 1 --run-id first --wait").await.well();
    let mut follower = world.command("events --since 1h --follow --event completed".split(' '));
    let mut follower = follower.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().contains("first"));
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    world.submit(json!({"type": "echo", "run_id": "second"})).await;
    let next = lines.next_line().await.unwrap();
    assert!(next.as_ref().is_some_and(|line| line.contains("second")), "{next:?}");
}

/// Given a reader of live events that ends early, when nothing more happens, then the command ends with it.
#[tokio::test]
async fn events_end_with_their_reader() {
    let world = world().await;
    let _node = world.node().start().await;
    for command in ["events", "events --since 1h --follow"] {
        let mut events = world.command(command.split(' '));
        let events = events.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut events = events.spawn().unwrap();
        if command == "events" {
            let mut lines = BufReader::new(events.stderr.as_mut().unwrap()).lines();
            assert!(lines.next_line().await.unwrap().unwrap().starts_with("listening to"));
        }
        drop(events.stdout.take());
        let ended = tokio::time::timeout(Duration::from_secs(60), events.wait()).await;
        assert!(ended.unwrap_or_else(|_| panic!("{command} goes on without a reader")).unwrap().success());
    }
}

/// Given a run that does not end in time, when a program waits for it, then stderr names the run from the beginning,
/// and stdout has its record as it is when the time is over.
#[tokio::test]
async fn who_waits_in_vain_is_given_the_run() {
    let world = world().await;
    let _node = world.node().start().await;
    for line in ["submit sleep {\"ms\":600000} --run-id slow --wait=1s --json", "runs wait slow --timeout 1s --json"] {
        let said = say(&world, line).await;
        assert_eq!((said.code, &said.json()["run_id"], &said.json()["state"]), (4, &json!("slow"), &json!("running")));
    }
    let line = "submit sleep {\"ms\":600000} --run-id other --wait --json";
    let mut waiting = world.command(line.split(' '));
    let mut waiting = waiting.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("other: enqueued; waiting"));
}

/// Given a job that was accepted, when the server is gone before the first answer about its end, then the command waits
/// for it all the same.
#[tokio::test]
async fn the_wait_for_an_accepted_job_outlives_a_restart_of_the_server() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut waiting = world.command(["submit", "sleep", "{\"ms\":500}", "--wait"]);
    let mut waiting = waiting.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().contains("waiting for its end"));
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    let ended = waiting.wait().await.unwrap();
    let mut said = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        said.push(line);
    }
    assert!(ended.success(), "{ended}: {said:?}");
}

/// Given a user who takes the limit of an attempt for that of the waiting, then the command says which is which.
#[tokio::test]
async fn the_limit_of_an_attempt_is_not_taken_for_that_of_the_waiting() {
    let world = world().await;
    let _node = world.node().start().await;
    let said = say(&world, "submit echo 1 --wait --timeout 30s").await.well();
    assert!(said.err.contains("--wait=30s would be that of the waiting"), "{}", said.err);
    let said = say(&world, "submit echo 1 --wait=20s --timeout 30s").await.well();
    assert!(said.err.contains("at most 20s") && !said.err.contains("--timeout"), "{}", said.err);
}

/// Given a cluster, when the word for a kind of things is given alone, then they are listed; for programs every list is
/// one JSON object; and a wrong command line is answered with what is meant, whatever variables are set.
#[tokio::test]
async fn a_word_alone_lists_and_every_list_is_one_object() {
    let world = world().await;
    let _node = world.node().start().await;
    say(&world, "schedules put tick noop --every 1h").await.well();
    say(&world, "submit echo 1 --wait=30s").await.well();
    for (kind, items) in [
        ("runs", "runs"),
        ("dlq", "entries"),
        ("schedules", "schedules"),
        ("schedules next", "times"),
        ("schedules diff", "changes"),
        ("breakers", "breakers"),
        ("limits", "limits"),
        ("queues", "queues"),
        ("nodes", "nodes"),
        ("audit", "entries"),
    ] {
        say(&world, kind).await.well();
        let said = say(&world, &format!("{kind} --json")).await.well();
        assert!(said.json()[items].is_array() && said.out.lines().count() == 1, "{kind}: {}", said.out);
    }
    let wrong = say(&world, "runs get").await;
    assert!(wrong.code == 2 && wrong.err.contains("Usage: longshore runs get [OPTIONS] <ID>"), "{}", wrong.err);
    let wrong = say(&world, "runs retry main-p5-1").await;
    assert!(wrong.code == 2 && wrong.err.contains("did you mean longshore dlq replay?"), "{}", wrong.err);
    let wrong = say(&world, "runs --json cancel --all").await;
    assert!(wrong.code == 2 && wrong.err.contains("behind the subcommand"), "{}", wrong.err);
}

/// Given no cluster at all, when completions and manual pages are asked for, then they name the commands.
#[tokio::test]
async fn completions_and_manual_pages_are_written() {
    let world = world().await;
    for shell in ["bash", "zsh", "fish"] {
        let said = say(&world, &format!("completions {shell}")).await.well();
        assert!(said.out.contains("replay") && said.out.contains("longshore"), "{shell}");
    }
    let folder = world.dir().join("man");
    std::fs::create_dir(&folder).unwrap();
    say(&world, &format!("man {}", folder.display())).await.well();
    let page = std::fs::read_to_string(folder.join("longshore-dlq-replay.1")).unwrap();
    assert!(page.contains(".TH longshore-dlq-replay 1"), "{page}");
}

/// Given a reader that ends early, or one that takes nothing, when a command prints, then the one is a success without
/// a word, and the other is an error that says what could not be written.
#[tokio::test]
async fn what_reads_the_output_may_end_early() {
    let longshore = env!("CARGO_BIN_EXE_longshore");
    let run = async |script: String| {
        let output = tokio::process::Command::new("bash").arg("-c").arg(script).output().await.unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for command in ["config print", "completions bash", "--help"] {
        let (out, err) = run(format!("{longshore} {command} | head -n 1 > /dev/null; echo ${{PIPESTATUS[0]}}")).await;
        assert_eq!((out.trim(), err.as_str()), ("0", ""), "{command}");
    }
    let (out, err) = run(format!("{longshore} completions bash | bash -n && echo sound")).await;
    assert_eq!((out.trim(), err.as_str()), ("sound", ""));
    if std::path::Path::new("/dev/full").exists() {
        let (out, err) = run(format!("{longshore} config print > /dev/full; echo $?")).await;
        assert!(out.trim() == "1" && err.contains("cannot write to stdout") && !err.contains("--dir"), "{out} {err}");
    }
}

/// Given dead letters, when they are listed, grouped and shown, then each fits on its line and no part is missing.
#[tokio::test]
async fn dead_letters_are_listed_and_shown() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky()).with("types.\"mail.send\"", &flaky()).start().await;
    let empty = say(&world, "dlq list").await.well();
    assert_eq!((empty.out.as_str(), empty.err.trim()), ("", "no dead letters"));
    let flaky = die(&world, "flaky", 7).await;
    let mail = die(&world, "mail.send", 1).await.pop().unwrap();
    world.eventually_dead_letters(8).await;

    let listed = say(&world, "dlq list").await.well();
    let lines: Vec<&str> = listed.out.lines().collect();
    assert!(lines.len() == 9 && lines.iter().all(|line| line.chars().count() <= 100), "{}", listed.out);
    assert!(lines[0].starts_with("run") && flaky.iter().all(|run| listed.out.contains(run)), "{}", listed.out);
    let two = say(&world, "dlq list --type flaky --since 1h --limit 2").await.well();
    assert_eq!(two.out.lines().count(), 3);
    let page = say(&world, "dlq list --type flaky --limit 5 --json").await.well().json();
    let rest = format!("dlq list --type flaky --json --cursor {}", page["cursor"].as_str().unwrap());
    let rest = say(&world, &rest).await.well().json();
    let count = |page: &Value| page["entries"].as_array().unwrap().len();
    assert_eq!((count(&page), count(&rest), rest.get("cursor")), (5, 2, None));

    let groups = say(&world, "dlq groups").await.well();
    let words: Vec<&str> = groups.out.split_whitespace().collect();
    let has = |part: &str| words.join(" ").contains(part);
    assert!(has(" 7 flaky ") && has(" 1 mail.send ") && has("retryable: attempt # fails as asked"), "{}", groups.out);
    assert_eq!(say(&world, "dlq groups --until 1h --json").await.well().json(), json!({"groups": []}));

    let one = say(&world, &format!("dlq get {mail}")).await.well().out;
    for part in ["dead", "mail.send", "X-Mine: 1", "\"times\": 9", "attempt 1 fails as asked"] {
        assert!(one.contains(part), "{part}: {one}");
    }
    assert_eq!(say(&world, &format!("dlq get {mail} --json")).await.well().json()["headers"]["X-Mine"], "1");
    let none = say(&world, "dlq get main-p5-999").await;
    assert!(none.code == 1 && none.err.contains("no dead letter of run main-p5-999"), "{}", none.err);
}

/// Given more dead letters than one call handles, when they are replayed and discarded, then all are handled, each
/// once, and the command says how many.
#[tokio::test]
async fn dead_letters_are_replayed_and_discarded() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky()).start().await;
    let runs = die(&world, "flaky", 620).await;
    world.eventually_dead_letters(620).await;

    let wrong = say(&world, "dlq replay").await;
    assert!(wrong.code == 2 && wrong.err.contains("say which: a run's id, a filter"), "{}", wrong.err);
    let dry = say(&world, "dlq replay --type flaky --dry-run").await.well();
    assert_eq!(dry.out, "620 dead letters would be replayed\n");
    assert_eq!(world.dead_letters("default").await.len(), 620);
    let one = format!("dlq replay {} --set-priority 2 --set-payload {{\"times\":0}} --set-header X-Mine=", runs[0]);
    assert_eq!(say(&world, &one).await.well().out, "1 dead letter replayed\n");
    let end = world.wait(&runs[0]).await;
    assert_eq!((end.state.as_str(), end.round, end.priority), ("completed", 2, 2));

    for unasked in ["dlq replay --all", "dlq discard --all --json", "runs cancel --type flaky --json"] {
        let refused = say(&world, unasked).await;
        let is_empty = unasked.starts_with("runs") && refused.out.contains("no run");
        assert!(is_empty || (refused.code == 2 && refused.err.contains("--yes")), "{unasked}: {}", refused.err);
    }
    let refused = say(&world, &format!("runs erase {}", runs[0])).await;
    assert!(refused.code == 2 && refused.err.contains("Erase main-p5-1 for good?"), "{}", refused.err);
    assert_eq!(world.dead_letters("default").await.len(), 619, "nothing was done");

    // They die again during the replay, and are not replayed a second time.
    let again = say(&world, "dlq replay --all --yes").await.well();
    assert_eq!(again.out, "619 dead letters replayed\n", "{}", again.err);
    for run in &runs[1..] {
        let record = longshore_harness::eventually("dead again", std::time::Duration::from_secs(30), async || {
            let record = world.wait(run).await;
            if record.state == "dead" { Ok(record) } else { Err(record.state) }
        });
        assert_eq!(record.await.round, 2);
    }
    let limited = say(&world, "dlq discard --type flaky --limit 10 --rate 100 --yes --json").await.well().json();
    assert_eq!(limited, json!({"discarded": 10, "failed": [], "more": true}));
    let rest = say(&world, "dlq discard --error-kind retryable --yes").await.well();
    assert_eq!(rest.out, "609 dead letters discarded\n");
    assert_eq!(world.dead_letters("default").await.len(), 0);
    let gone = say(&world, &format!("dlq discard {}", runs[1])).await;
    assert!(gone.code == 1 && gone.err.contains("no dead letter"), "{}", gone.err);
}

/// Given dead letters that cannot be replayed, when all are replayed, then the others are, the command names those that
/// are not, and the exit code shows it.
#[tokio::test]
async fn what_cannot_be_replayed_is_named() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky()).start().await;
    // Its tenant cannot be read, so its subject cannot be known.
    let lost = world.publish("flaky").tenant("a$b").json(json!({})).await;
    let fine = die(&world, "flaky", 3).await;
    world.eventually_dead_letters(4).await;
    for line in ["dlq replay --all --dry-run --tenant _all", "dlq replay --all --tenant _all --yes"] {
        let said = say(&world, line).await;
        assert_eq!(said.code, 1, "{} {}", said.out, said.err);
        assert!(said.out.starts_with("3 dead letters") && said.out.ends_with(", 1 failed\n"), "{}", said.out);
        assert!(said.err.contains(&lost) && said.err.contains("publish it anew"), "{}", said.err);
    }
    for run in &fine {
        longshore_harness::eventually("its second round", std::time::Duration::from_secs(20), async || {
            let record = world.wait(run).await;
            if record.round == 2 { Ok(()) } else { Err(record.round) }
        })
        .await;
    }
}

/// Given runs that wait, run and have ended, when some are cancelled and others erased, then the command says which.
#[tokio::test]
async fn runs_are_cancelled_and_erased() {
    let world = world().await;
    let node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &busy).await;
    let late = say(&world, &format!("runs wait {busy} --timeout 100ms")).await;
    assert_eq!(late.code, 4, "the time-out came first: {}", late.err);
    let waiting = world.publish("noop").priority(7).many((0..20).map(|n| json!(n))).await;
    let first = &waiting[0].run_id;
    assert_eq!(say(&world, &format!("runs cancel {first}")).await.well().out, format!("{first} is cancelled\n"));
    let dry = say(&world, "runs cancel --type noop --state enqueued --dry-run").await.well();
    assert_eq!(dry.out, "19 runs would be cancelled\n");
    let limited = say(&world, "runs cancel --type noop --limit 4 --json --yes").await.well().json();
    assert_eq!(limited["cancelled"], 4);
    // Running jobs are stopped last; otherwise their worker would start jobs that are to be cancelled.
    assert_eq!(say(&world, "runs cancel --queue main --yes").await.well().out, "16 runs cancelled\n");
    for run in waiting.iter().map(|receipt| &receipt.run_id).chain([&busy]) {
        assert_eq!(world.wait(run).await.state, "cancelled");
    }
    assert_eq!(say(&world, &format!("runs wait {busy}")).await.code, 3, "it ended other than completed");

    let done = world.publish("echo").json(json!({"name": "Anna"})).await;
    world.wait(&done).await;
    let ended = say(&world, &format!("runs cancel {done}")).await;
    assert!(ended.code == 1 && ended.err.contains("has ended: it is completed"), "{}", ended.err);
    let erased = say(&world, &format!("runs erase {done} {first} main-p5-999 --yes")).await;
    assert_eq!((erased.code, erased.out), (1, format!("{done} is erased\n{first} is erased\n")));
    assert!(erased.err.contains("main-p5-999"), "{}", erased.err);
    let shown = say(&world, &format!("runs get {done}")).await.well().out;
    assert!(shown.contains("erased") && !shown.contains("Anna"), "{shown}");
    node.stop().await;
}

/// Given a delayed job, when its run is shown, while it waits and after it has ended, then it says when it was
/// submitted.
#[tokio::test]
async fn a_delayed_job_says_when_it_was_submitted() {
    let world = world().await;
    let _node = world.node().start().await;
    say(&world, "submit echo 1 --run-id late --delay 1h").await.well();
    let waits = say(&world, "runs get late").await.well().out;
    assert!(waits.contains("\nsubmitted  ") && waits.contains("\ndue ") && !waits.contains("enqueued"), "{waits}");
    say(&world, "runs run-now late").await.well();
    assert_eq!(world.wait("late").await.state, "completed");
    let ended = say(&world, "runs get late").await.well().out;
    assert!(ended.contains("\nsubmitted  ") && ended.contains("\nenqueued  "), "{ended}");
    let times = say(&world, "runs get late --json").await.well().json();
    assert!(times["submitted_at"].as_str().unwrap() < times["enqueued_at"].as_str().unwrap(), "{times}");
    let at_once = say(&world, "submit echo 1 --wait=30s").await.well().out;
    assert!(at_once.contains("\nenqueued  ") && !at_once.contains("submitted"), "{at_once}");
}

/// Given a variable that names a cluster, when `dev` is started, then it keeps to a server of its own; named on the
/// command line, that cluster is joined.
#[tokio::test]
async fn dev_joins_a_cluster_only_if_the_command_line_says_so() {
    let world = world().await;
    let url = world.urls();
    for (by_hand, arguments) in [(false, vec!["dev", "--ephemeral"]), (true, vec!["dev", "--server", &url])] {
        let mut dev = world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(dev.stdout.take().unwrap()).lines();
        let welcome = async {
            while let Some(line) = said.next_line().await.unwrap() {
                if line.contains("NATS at ") {
                    return line;
                }
            }
            panic!("dev ended")
        };
        let welcome = tokio::time::timeout(std::time::Duration::from_secs(60), welcome).await.unwrap();
        assert_eq!(welcome.contains(&url), by_hand, "{welcome}");
        assert_eq!(world.jetstream().get_stream("LONGSHORE_EVENTS").await.is_ok(), by_hand);
        let interrupt = format!("kill -INT {}", dev.id().unwrap());
        assert!(tokio::process::Command::new("sh").args(["-c", &interrupt]).status().await.unwrap().success());
        let ended = dev.wait_with_output().await.unwrap();
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && err.contains("--server joins") != by_hand, "{err}");
    }
}

/// Given `dev` whose output nobody reads, when the pipe is full and the node has warnings to log, then it goes on with
/// its jobs.
#[tokio::test]
async fn dev_works_on_when_nobody_reads_what_it_prints() {
    const UNSERVED: usize = 16;
    let world = world().await;
    let mut dev = world.command(["dev", "--server", &world.urls()]);
    let dev = dev.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut dev = dev.spawn().unwrap();
    let mut said = BufReader::new(dev.stdout.take().unwrap()).lines();
    while !said.next_line().await.unwrap().expect("dev ended").contains("Ctrl-C") {}

    // Three lines each, of 50 bytes: more than a pipe holds.
    let mut last = String::new();
    for _ in 0..1_500 {
        last = world.publish("echo").json(json!(1)).await;
    }
    assert_eq!(world.wait(&last).await.state, "completed");
    for number in 0..UNSERVED {
        world.publish(&format!("nobody.{number}")).json(json!(1)).await;
    }
    eventually("types without a handler", Duration::from_secs(60), async || {
        let queues = world.try_request("_all", "queues.list", json!({})).await.map_err(|error| error.to_string())?;
        let found = queues["no_handler"].as_array().map_or(0, Vec::len);
        if found == UNSERVED { Ok(()) } else { Err(queues.to_string()) }
    })
    .await;
    for _ in 0..20 {
        let run = world.publish("echo").json(json!(1)).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    assert!(dev.try_wait().unwrap().is_none(), "dev ended");
}

/// Given schedules that a file declared, when another file is compared with the cluster, then each difference is shown,
/// the exit code says whether there are any, and nothing is changed.
#[tokio::test]
async fn a_file_of_schedules_is_compared_with_the_cluster() {
    let world = world().await;
    let hourly = "cron = '0 0 * * * *'\ntype = 'noop'";
    let node = world.node().with("schedules.changed", hourly).with("schedules.gone", hourly).start().await;
    let folder = tempfile::tempdir().unwrap();
    let diff = async |text: &str| {
        let file = folder.path().join("other.toml");
        std::fs::write(&file, text).unwrap();
        say(&world, &format!("schedules diff --config {}", file.display())).await
    };
    let all = || world.request("schedules.list", json!({}));
    let before = all().await;

    let as_it_is = diff(&format!("[schedules.changed]\n{hourly}\n[schedules.gone]\n{hourly}")).await;
    assert_eq!((as_it_is.code, as_it_is.out.as_str()), (0, ""));
    let other =
        diff(&format!("[schedules.changed]\n{}\n[schedules.new]\n{hourly}", hourly.replace("0 0 *", "0 5 *"))).await;
    let said = "~ changed\n    cron: \"0 0 * * * *\" → \"0 5 * * * *\"\n+ new\n- gone\n";
    assert_eq!((other.code, other.out.as_str()), (1, said));
    let empty = diff("[schedules]").await;
    assert_eq!((empty.code, empty.out.as_str()), (1, "- changed\n- gone\n"));
    // Whether a node of this file removes any depends on its name.
    let silent = diff("").await;
    assert_eq!((silent.code, silent.out.as_str()), (0, ""));
    assert!(silent.err.contains("no [schedules]") && silent.err.contains("of 2 in all"), "{}", silent.err);
    let file = folder.path().join("other.toml");
    let silent = say(&world, &format!("schedules diff --json --config {}", file.display())).await.well();
    assert_eq!(silent.out, "{\"changes\":[]}\n");
    assert_eq!(all().await, before);

    // What a client puts is its own from then on.
    world.request("schedules.put", json!({"id": "gone", "cron": "0 0 * * * *", "type": "noop"})).await;
    let empty = diff("[schedules]").await;
    assert_eq!((empty.code, empty.out.as_str()), (1, "- changed\n"));
    node.stop().await;
}
