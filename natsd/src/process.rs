//! A child process that cannot outlive this process, and whose end many callers can await.
//!
//! Three things end it: [`Process`] being dropped (also by a panic), the runtime being dropped (tokio's
//! `kill_on_drop`), and the death of this process by any cause, `kill -9` included. The *leash* covers the last case: a
//! tiny `sh` reads from a pipe whose other end only this process holds. When this process is gone the read ends, and
//! the `sh` kills the child's process group. (Linux could do this by `PR_SET_PDEATHSIG`, but setting that between fork
//! and exec needs `unsafe`.)
//!
//! The child gets its own process group, so Ctrl-C in a terminal reaches only this process, which decides what ends
//! when. Signals are sent under the lock that also guards the reaping, so they never reach a process id that the system
//! has reused.

use std::future::poll_fn;
use std::io;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{Child as Blocking, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;

/// Takes each line a child prints, without its line end.
pub type LineSink = Box<dyn FnMut(&str) + Send>;

/// How long the pipes may stay open after the child's end (a grandchild may hold them) before that end is reported.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A child process, running or ended.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    held: Arc<Mutex<Held>>,
    ended: watch::Receiver<Option<ExitStatus>>,
    reaper: JoinHandle<()>,
}

/// The state under one lock: the id is sure to be the child's until the child is reaped.
#[derive(Debug)]
struct Held {
    child: Child,
    leash: Option<Leash>,
}

impl Process {
    /// Starts `command` with an empty stdin and passes its output to the sinks. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Spawn`] if it, or the `sh` of its leash, cannot be started.
    pub fn spawn(command: Command, stdout: LineSink, stderr: LineSink) -> Result<Process, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut command = tokio::process::Command::from(command);
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| Error::Spawn { program, source })?;
        let pid = child.id().expect("a child that was not yet waited for has an id");
        let leash = Leash::tie(pid).map_err(|source| Error::Spawn { program: "sh".to_owned(), source })?;

        let pumps = [
            tokio::spawn(pump(child.stdout.take().expect("piped above"), stdout)),
            tokio::spawn(pump(child.stderr.take().expect("piped above"), stderr)),
        ];
        let held = Arc::new(Mutex::new(Held { child, leash: Some(leash) }));
        let (ends, ended) = watch::channel(None);
        let reaper = tokio::spawn(reap(Arc::clone(&held), pumps, ends));
        Ok(Process { pid, held, ended, reaper })
    }

    /// The process id, also after its end.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has not ended, as far as this process knows. A stopped process is running.
    pub fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Sends `signal` to the process, not to its group. False if it had ended.
    pub fn signal(&self, signal: Signal) -> bool {
        let held = lock(&self.held);
        let pid = held.child.id().and_then(to_pid);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Waits for its end and until everything it printed has reached the sinks. Returns at once if it has ended.
    pub async fn ended(&self) -> ExitStatus {
        let mut ended = self.ended.clone();
        let status = ended.wait_for(Option::is_some).await.expect("the reaper lives as long as `self`");
        status.expect("waited for above")
    }

    /// Kills its whole process group and returns when it is dead. It blocks for the few milliseconds that takes, so
    /// that it can be used where nothing can be awaited; the last output may not have reached the sinks.
    pub fn kill_now(&self) {
        let mut held = lock(&self.held);
        let Some(pid) = held.child.id().and_then(to_pid) else { return };
        let _ = kill_process_group(pid, Signal::KILL);
        // NOWAIT leaves the status to tokio, which relies on reaping its children itself.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = held.child.try_wait();
        held.leash = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_now();
        self.reaper.abort();
    }
}

/// Waits for the child's end and reports it once its output has been read.
async fn reap(held: Arc<Mutex<Held>>, pumps: [JoinHandle<()>; 2], ends: watch::Sender<Option<ExitStatus>>) {
    // `wait` can be dropped and called again between polls, so the lock is held only while polling.
    let status = poll_fn(|context| pin!(lock(&held).child.wait()).poll(context)).await;
    lock(&held).leash = None;
    let _ = tokio::time::timeout(LAST_WORDS, async {
        for pump in pumps {
            let _ = pump.await;
        }
    })
    .await;
    ends.send_replace(Some(status.expect("a child of ours that only we reap can be waited for")));
}

/// Passes on line by line until the pipe ends. Bytes that are not UTF-8 are replaced, not dropped.
async fn pump(pipe: impl AsyncRead + Unpin, mut sink: LineSink) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while pipe.read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
        let text = String::from_utf8_lossy(&line);
        sink(text.trim_end_matches(['\n', '\r']));
        line.clear();
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().expect("no code panics while it holds the child")
}

fn to_pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Kills a process group when this process dies. If the leash is dropped, it kills nothing.
#[derive(Debug)]
struct Leash {
    shell: Blocking,
}

impl Leash {
    /// `read` fails at the end of its input, which comes when the last holder of the pipe's other end is gone. This
    /// process is the only holder: the standard library opens pipes so that other children do not inherit them.
    fn tie(group: u32) -> io::Result<Leash> {
        let mut command = Command::new("sh");
        command.args(["-c", r#"read -r _ || kill -s KILL -- "-$1""#, "leash", &group.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Leash { shell: command.spawn()? })
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        // The shell is killed before its pipe is closed, so that it cannot mistake a drop for this process's death.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
#[path = "process/tests.rs"]
mod tests;
