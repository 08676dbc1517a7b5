//! A program does the work of a job, and nothing of it is left when its attempt is over, however that ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_harness::{NodeBuilder, World, eventually};
use serde_json::{Value, json};

use crate::{AT_ONCE, FREEZE, served_by, world};

/// A limit for hopeless cases.
const WITHIN: Duration = Duration::from_secs(60);

/// A node whose type `name` runs this script by `sh`.
fn with<'w>(node: NodeBuilder<'w>, name: &str, of_type: &str, script: &str) -> NodeBuilder<'w> {
    with_settings(node, name, of_type, &format!("program = '/bin/sh'\nargs = ['-c', '''{script}''']"))
}

fn with_settings<'w>(node: NodeBuilder<'w>, name: &str, of_type: &str, of_command: &str) -> NodeBuilder<'w> {
    let path = "env = { PATH = '/usr/bin:/bin' }";
    let node = node.with(&format!("types.{name}"), &served_by("command.run", of_type));
    node.with(&format!("types.{name}.command"), &format!("{path}\n{of_command}"))
}

/// Waits for the processes whose ids a script has written, so many of them.
async fn pids(file: &Path, count: usize) -> Vec<u32> {
    eventually("the script writes its processes", WITHIN, async || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if pids.len() >= count && text.ends_with('\n') { Ok(pids) } else { Err(text) }
    })
    .await
}

/// Waits until none of these processes runs.
async fn are_gone(pids: &[u32]) {
    eventually("no process of the command is left", WITHIN, async || {
        let stat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        // The state stands behind the name, which is in brackets; Z has ended, and only its parent has not noticed.
        let runs = |stat: &String| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z");
        let left: Vec<String> = pids.iter().filter_map(stat).filter(runs).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await;
}

/// A script that ignores TERM, as does a child of it, and writes both process ids into this file; it never ends.
fn stubborn(file: &Path) -> String {
    format!("trap \"\" TERM; sleep 600 & printf \"%s\\n\" $$ $! > {}; while :; do wait; done", file.display())
}

fn file(world: &World, name: &str) -> PathBuf {
    world.dir().join(name)
}

/// Given a type with a command, then its payload is the stdin, its stdout the result; no shell reads its arguments, and
/// of the node's variables it has none.
#[tokio::test]
async fn a_program_does_the_work_of_a_job() {
    let world = world().await;
    std::fs::write(file(&world, "secret"), "file-secret\n").unwrap();
    let node = with(world.node(), "upper", "", "tr a-z A-Z");
    let node = with_settings(node, "echo", "", "program = '/bin/echo'\nargs = ['\"$HOME;`id`*\"']");
    let env = "env = { A = 'plain', B = { env = 'TOKEN' }, C = { file = 'secret' } }";
    let node = with_settings(node, "env", "", &format!("program = '/usr/bin/env'\n{env}"));
    let node = with_settings(node, "pwd", "", "program = '/bin/pwd'\ndir = '/usr'").env("TOKEN", "env-secret");
    let node = node.start().await;
    let result = async |job_type: &str, payload: Value| {
        let run = world.publish(job_type).header("Longshore-Run-Id", &format!("run-{job_type}")).json(payload).await;
        let end = world.wait(&run).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{end:?}");
        end
    };
    assert_eq!(result("upper", json!(["a"])).await.result, Some(json!(["A"])));
    assert_eq!(result("echo", json!(1)).await.result, Some(json!("$HOME;`id`*")));
    let text = async |job_type: &str| {
        let kept = result(job_type, json!(1)).await.rest["result_base64"].as_str().unwrap().to_owned();
        let decoded =
            std::process::Command::new("sh").args(["-c", &format!("echo {kept} | base64 -d")]).output().unwrap();
        String::from_utf8(decoded.stdout).unwrap()
    };
    assert_eq!(text("pwd").await, "/usr\n");
    let mut env: Vec<String> = text("env").await.lines().map(str::to_owned).collect();
    env.sort_unstable();
    let expected = "A=plain B=env-secret C=file-secret LONGSHORE_ATTEMPT=1 LONGSHORE_RUN_ID=run-env LONGSHORE_TENANT=default \
                    LONGSHORE_TYPE=env";
    assert_eq!(env.join(" "), expected);
    assert!(!node.log().tail(10_000).contains("secret"));
}

/// An exit code other than 0 has the job tried again, unless the type says that it is for good; the error is the end of
/// stderr.
#[tokio::test]
async fn an_exit_code_says_whether_the_job_is_tried_again() {
    let world = world().await;
    let once = format!("max_attempts = 1\n{AT_ONCE}");
    let mut node = world.node();
    for (name, script) in [
        ("three", "echo no such order >&2; exit 3"),
        ("four", "exit 4"),
        ("later", "exit 75"),
        ("killed", "kill -9 $$"),
        ("flood", "yes error | head -c 3000000 >&2; echo last >&2; exit 1"),
    ] {
        let settings = format!("program = '/bin/sh'\nargs = ['-c', '''{script}''']\npermanent_exit = [3]");
        node = with_settings(node, name, &once, &settings);
    }
    let _node = with(node, "twice", AT_ONCE, "test $LONGSHORE_ATTEMPT = 2").start().await;

    for (name, kind, message) in [
        ("three", "permanent", "exit code 3: no such order"),
        ("four", "retryable", "exit code 4"),
        ("later", "retryable", "exit code 75"),
        ("killed", "retryable", "killed by signal 9"),
    ] {
        let error = world.wait(&world.publish(name).json(json!(1)).await).await.error.unwrap();
        assert_eq!((error.kind.as_str(), error.message.as_str()), (kind, message));
    }
    let error = world.wait(&world.publish("flood").json(json!(1)).await).await.error.unwrap().message;
    assert!(error.starts_with("exit code 1: ") && error.ends_with("\nlast") && error.len() < 2_100, "{error}");
    let end = world.wait(&world.publish("twice").json(json!(1)).await).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
}

/// A command that floods both pipes, or reads nothing of a large payload, ends; its result is cut.
#[tokio::test]
async fn neither_flood_nor_silence_keeps_a_command_from_its_end() {
    let world = world().await;
    let flood = "yes out | head -c 5000000 & yes err | head -c 5000000 >&2; wait";
    let node = with(world.node(), "flood", "", flood);
    let node = with_settings(node, "cut", "", "program = '/bin/echo'\nargs = ['12345678']\nmax_output = 3");
    let _node = with(node, "idle", "", "echo 1").start().await;

    let end = world.wait(&world.publish("flood").json(json!(1)).await).await;
    assert_eq!(end.state, "completed", "{end:?}");
    assert_eq!(end.rest["result_base64"].as_str().map(str::len), Some((64usize << 10).div_ceil(3) * 4));
    assert!(end.rest["log"].to_string().contains("the command's output was cut: 4934464 bytes more"), "{end:?}");
    assert_eq!(world.wait(&world.publish("cut").json(json!(1)).await).await.result, Some(json!(123)));
    let end = world.wait(&world.publish("idle").json(json!("x".repeat(500_000))).await).await;
    assert_eq!(end.result, Some(json!(1)));
}

/// Given a command that ignores TERM, with a child that does so as well, when its time is over, its run is cancelled,
/// its node ends or is killed, then both are gone; and so is what a command leaves behind that has ended. A child that
/// ends later than its command has the time for that.
#[tokio::test]
async fn nothing_of_a_command_is_left_when_its_attempt_is_over() {
    let world = world().await;
    let path = |name: &str| file(&world, name);
    let late = format!("timeout = '4s'\nmax_attempts = 1\n{AT_ONCE}");
    let node = with(world.node(), "late", &late, &stubborn(&path("late")));
    let node = with(node, "cancelled", "", &stubborn(&path("cancelled")));
    let left = format!("sleep 600 & echo $! > {}; echo 1", path("left").display());
    let node = with(node, "left", "", &left);
    let (bye, polite) = (path("bye"), path("polite"));
    let (bye, polite) = (bye.display(), polite.display());
    // Its child needs longer than it does.
    let child = format!("trap \"sleep 0.1; echo bye > {bye}; exit\" TERM; while :; do sleep 0.1; done");
    let polite = format!("({child}) & trap exit TERM; printf \"%s\\n\" $$ $! > {polite}; while :; do sleep 0.1; done");
    let first = with(node, "polite", &late, &polite).start().await;

    let end = world.wait(&world.publish("late").json(json!(1)).await).await;
    assert_eq!(end.error.unwrap().kind, "timeout");
    are_gone(&pids(&path("late"), 2).await).await;
    let end = world.wait(&world.publish("polite").json(json!(1)).await).await;
    assert_eq!(end.error.unwrap().kind, "timeout");
    are_gone(&pids(&path("polite"), 2).await).await;
    assert!(path("bye").exists(), "its child, too, was asked to end first");
    let end = world.wait(&world.publish("left").json(json!(1)).await).await;
    assert_eq!(end.result, Some(json!(1)), "a child that holds the pipes does not keep the job");
    are_gone(&pids(&path("left"), 1).await).await;

    let run = world.publish("cancelled").json(json!(1)).await;
    let running = pids(&path("cancelled"), 2).await;
    world.request("runs.cancel", json!({"run_id": run})).await;
    assert_eq!(world.wait(&run).await.state, "cancelled");
    are_gone(&running).await;
    first.stop().await;

    let node = with(world.node(), "ended", "", &stubborn(&path("ended"))).with("node", "shutdown_grace = '100ms'");
    let second = with(node, "killed", "", &stubborn(&path("killed"))).start().await;
    world.publish("killed").json(json!(1)).await;
    let killed = pids(&path("killed"), 2).await;
    second.kill9().await;
    are_gone(&killed).await;
    std::fs::remove_file(path("killed")).unwrap();

    second.restart().await;
    world.publish("ended").json(json!(1)).await;
    let ended = pids(&path("ended"), 2).await;
    second.stop().await;
    are_gone(&ended).await;
}

/// Given a node that is frozen for longer than its lease, when it goes on, then its command is stopped, and the one of
/// the node that took over goes on.
#[tokio::test]
async fn a_command_ends_with_its_lease() {
    let world = world().await;
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.1; done; echo 1";
    let dir = world.dir().display().to_string();
    let settings = format!("program = '/bin/sh'\nargs = ['-c', '''{script}''']\ndir = '{dir}'");
    let node = || with_settings(world.node(), "long", AT_ONCE, &settings).with("node", "lease = '2s'");
    let first = node().start().await;
    let run = world.publish("long").json(json!(1)).await;
    let old = pids(&file(&world, "pids"), 1).await;
    world.eventually_is(&run, "running", WITHIN).await;

    let _second = node().start().await;
    first.sigstop();
    tokio::time::sleep(FREEZE).await;
    first.sigcont();

    are_gone(&old).await;
    pids(&file(&world, "pids"), 2).await;
    std::fs::write(file(&world, "go"), "").unwrap();
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2), "{end:?}");
}

/// Commands are run only where a type has one: no job chooses a program, and settings that cannot work stop the start.
#[tokio::test]
async fn no_command_is_run_that_no_type_has() {
    let world = world().await;
    for (command, says) in [
        ("args = ['x']", "types.t.command.program: is missing"),
        ("program = 'sh'", "types.t.command.program: \"sh\" is not a whole path"),
        ("program = '/nowhere/sh'", "types.t.command.program: there is no file"),
        ("program = '/bin/sh'\ndir = '/nowhere'", "types.t.command.dir: there is no folder"),
        ("program = '/bin/sh'\nenv = { 'A=B' = 'x' }", "types.t.command.env: \"A=B\" is no name of a variable"),
        (
            "program = '/bin/sh'\nenv = { A = { env = 'NOWHERE' } }",
            "types.t.command.env: A: the variable NOWHERE is not set",
        ),
        ("program = '/bin/sh'\npermanent_exit = [75]", "types.t.command.permanent_exit: 75 is not an exit code"),
        ("program = '/bin/sh'\nmax_output = '1MiB'", "types.t.command.max_output: "),
    ] {
        let refusal = with_settings(world.node(), "t", "", command).try_start().await.unwrap_err();
        assert!(refusal.log.contains(says), "{says} is not in {}", refusal.log);
    }
    let refusal = world.node().with("types.t", "handler = 'command.run'").try_start().await.unwrap_err();
    assert!(
        refusal.log.contains("types.t.handler: \"command.run\" needs the type's table types.t.command"),
        "{}",
        refusal.log
    );

    let _node =
        with(world.node().with("types.'command.run'", "no_handler_grace = '0s'\nmax_attempts = 1"), "t", "", "echo 1")
            .start()
            .await;
    let end = world.wait(&world.publish("command.run").json(json!({"program": "/bin/sh"})).await).await;
    assert_eq!(end.error.unwrap().kind, "no_handler");
}
