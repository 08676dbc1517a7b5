//! Real processes: `sh` and `sleep` in place of a server.

use std::os::unix::process::ExitStatusExt;

use super::*;

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn silent() -> LineSink {
    Box::new(|_| ())
}

/// A sink, and the lines it was given.
fn collecting() -> (LineSink, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&lines);
    (Box::new(move |line| into.lock().unwrap().push(line.to_owned())), lines)
}

/// Whether a process of this id exists; a dead but unreaped one does not count.
fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

#[tokio::test]
async fn its_end_is_reported_after_all_it_printed() {
    let (out, printed) = collecting();
    let (err, complained) = collecting();
    let process = Process::spawn(sh("echo one; printf 'tw\\377o'; echo three >&2; exit 7"), out, err).unwrap();
    assert_eq!(process.ended().await.code(), Some(7));
    assert_eq!(*printed.lock().unwrap(), ["one", "tw\u{fffd}o"]);
    assert_eq!(*complained.lock().unwrap(), ["three"]);
    assert!(!process.is_running());
    assert!(!process.signal(Signal::TERM), "no process is left to get a signal");
    assert_eq!(process.ended().await.code(), Some(7), "its end can be asked for again");
}

#[tokio::test]
async fn signals_reach_it_and_many_may_await_its_end() {
    let process = Arc::new(Process::spawn(sh("exec sleep 1000"), silent(), silent()).unwrap());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let process = Arc::clone(&process);
        waiting.spawn(async move { process.ended().await.signal() });
    }
    tokio::task::yield_now().await;
    assert!(process.signal(Signal::STOP) && process.is_running());
    assert!(process.signal(Signal::KILL));
    assert_eq!(waiting.join_all().await, [Some(9); 3]);
}

#[tokio::test]
async fn dropped_it_is_dead_with_its_whole_group() {
    let (out, printed) = collecting();
    let process = Process::spawn(sh("sleep 1000 & echo $!; wait"), out, silent()).unwrap();
    let pid = process.pid();
    let grandchild: u32 = loop {
        if let Some(line) = printed.lock().unwrap().first() {
            break line.parse().unwrap();
        }
        tokio::task::yield_now().await;
    };
    assert!(is_alive(pid) && is_alive(grandchild));
    drop(process);
    assert!(!is_alive(pid));
    // The grandchild was killed in the same call, but the process that inherits it reaps it.
    tokio::time::timeout(Duration::from_secs(10), async {
        while is_alive(grandchild) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the grandchild dies with the group");
}

/// The leash alone: its other end closes as it would if this process were killed.
#[tokio::test]
async fn the_leash_kills_the_group_when_its_holder_is_gone() {
    let mut command = sh("exec sleep 1000");
    let mut child = command.process_group(0).spawn().unwrap();
    let mut leash = Leash::tie(child.id()).unwrap();
    drop(leash.shell.stdin.take());
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(status.signal(), Some(9));
}

#[tokio::test]
async fn a_dropped_leash_kills_no_process() {
    let process = Process::spawn(sh("sleep 1000 & wait $!"), silent(), silent()).unwrap();
    lock(&process.held).leash = None;
    assert!(process.signal(Signal::CONT) && is_alive(process.pid()));
}

#[tokio::test]
async fn what_cannot_be_started_is_named() {
    let error = Process::spawn(Command::new("no-such-program-here"), silent(), silent()).unwrap_err();
    assert_eq!(error.to_string(), "cannot start no-such-program-here");
}
