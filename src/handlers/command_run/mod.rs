//! `command.run`: a program of the operator's choice does the work of a job. The payload is its stdin, its stdout the
//! result, the end of its stderr the error.
//!
//! It runs without a shell, without the node's variables, in a process group of its own, which is gone when the attempt
//! is: `group`. Which program that is, only settings say, never a job.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{Fuse, FusedFuture as _};
use longshore_actors::handler::BoxFuture;
use longshore_actors::{Context, Handler, HandlerError, Success};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};
use tokio::time::{sleep, timeout};

mod group;

use group::Group;

/// How long a command that was asked to end may take, before it is killed. The node waits two seconds for a handler.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether all of its group have ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long its pipes may stay open after its end: a process that left its group may hold them.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How much of stderr is in the error.
const TAIL: usize = 2 << 10;

#[derive(Debug)]
pub(crate) struct CommandRun {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// The folder that it works in; `None`: the node's own.
    pub(crate) dir: Option<String>,
    /// So many bytes of stdout are the result, at most.
    pub(crate) max_output: usize,
    /// The exit codes that fail a job for good.
    pub(crate) permanent: Vec<u16>,
}

impl CommandRun {
    fn command(&self, context: &Context) -> Command {
        let job = &context.job;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear();
        command.env("LONGSHORE_RUN_ID", job.run_id.as_str()).env("LONGSHORE_TENANT", job.tenant.as_str());
        command.env("LONGSHORE_TYPE", job.job_type.as_str()).env("LONGSHORE_ATTEMPT", context.attempt.to_string());
        command.envs(&self.env);
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command
    }

    async fn perform(&self, context: &Context) -> Result<Success, HandlerError> {
        let program = &self.program;
        let failed = |error| HandlerError::retryable(format!("cannot run {program}: {error}"));
        // From here on, whatever ends this function or drops its future ends the group.
        let (mut child, group) = Group::spawn(&mut self.command(context)).map_err(failed)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut output, mut errors) = (Kept::first(self.max_output), Kept::last(TAIL));
        let status = {
            let served = async {
                tokio::join!(feed(stdin, context.payload.clone()), output.read(stdout), errors.read(stderr));
            };
            let mut pipes = pin!(served.fuse());
            let status = tokio::select! {
                status = beside(pipes.as_mut(), child.wait()) => status.map_err(failed)?,
                () = context.cancelled() => {
                    group.iter().for_each(Group::terminate);
                    let ended = async {
                        let _ = child.wait().await;
                        // The first of them may end before the others.
                        while group.as_ref().is_some_and(Group::is_left) {
                            sleep(LOOK_EVERY).await;
                        }
                    };
                    let _ = beside(pipes.as_mut(), timeout(GRACE, ended)).await;
                    return Err(HandlerError::retryable("the command was stopped"));
                }
            };
            // Processes that it left behind in its group end with it.
            drop(group);
            if !pipes.is_terminated() {
                let _ = timeout(LAST_WORDS, pipes).await;
            }
            status
        };
        if output.dropped > 0 {
            context.log(format!("the command's output was cut: {} bytes more", output.dropped)).await;
        }
        if status.success() { Ok(Success::from(Bytes::from(output.bytes))) } else { Err(self.error(status, &errors)) }
    }

    fn error(&self, status: ExitStatus, errors: &Kept) -> HandlerError {
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "no exit code".to_owned(),
        };
        let said = String::from_utf8_lossy(&errors.bytes);
        let message = if said.trim().is_empty() { end } else { format!("{end}: {}", said.trim()) };
        let is_permanent = |code: i32| self.permanent.iter().any(|known| i32::from(*known) == code);
        match status.code().is_some_and(is_permanent) {
            true => HandlerError::permanent(message),
            false => HandlerError::retryable(message),
        }
    }
}

impl Handler for CommandRun {
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        Box::pin(async move { self.perform(&context).await })
    }
}

/// Waits while the pipes are served: a command that cannot write does not end.
async fn beside<T>(mut pipes: Pin<&mut Fuse<impl Future<Output = ()>>>, what: impl Future<Output = T>) -> T {
    let mut what = pin!(what);
    loop {
        tokio::select! {
            done = &mut what => return done,
            () = &mut pipes, if !pipes.is_terminated() => {}
        }
    }
}

/// Gives a command its input; one that does not read it to the end misses nothing.
async fn feed(stdin: Option<ChildStdin>, payload: Bytes) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&payload).await;
    }
}

/// The first or the last bytes of an output, which is read to its end.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
    is_end: bool,
    dropped: u64,
}

impl Kept {
    fn first(most: usize) -> Self {
        Self { bytes: Vec::new(), most, is_end: false, dropped: 0 }
    }

    fn last(most: usize) -> Self {
        Self { is_end: true, ..Self::first(most) }
    }

    async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut piece = vec![0; 16 << 10];
        while let Ok(read @ 1..) = pipe.read(&mut piece).await {
            self.keep(&piece[..read]);
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = if self.is_end { piece.len() } else { piece.len().min(self.most - self.bytes.len()) };
        self.bytes.extend_from_slice(&piece[..room]);
        let beyond = self.bytes.len().saturating_sub(self.most);
        self.bytes.drain(..beyond);
        self.dropped += (piece.len() - room + beyond) as u64;
    }
}
