//! The process group of a command, which ends with the value that stands for it, and with this process, however that
//! ends.
//!
//! For the latter, a tiny `sh` reads from a pipe whose other end only this process holds, and keeps a list of the
//! groups. When the pipe ends, it kills what is on the list. (Linux could do this by `PR_SET_PDEATHSIG`, but setting
//! that between fork and exec needs `unsafe`.)

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// `+ 7` puts a group on the list, `- 7` takes it off if it is there: it may be on the list of an `sh` before.
const LEASH: &str = r#"
list=' '
while read -r what group; do
  case $what in
    +) list="$list$group " ;;
    -) case $list in *" $group "*) list="${list%% $group *} ${list#* $group }" ;; esac ;;
  esac
done
for group in $list; do kill -s KILL -- "-$group"; done
"#;

/// The `sh`, once there was a command.
static SHELL: Mutex<Option<Child>> = Mutex::new(None);

/// A command's process group. Dropped, it is killed: whatever of it is left.
#[derive(Debug)]
pub(super) struct Group(Pid);

impl Group {
    /// Spawns a command that leads a group. The `sh` is there before: a node that is killed while it starts one would
    /// leave the command behind.
    pub(super) fn spawn(
        command: &mut tokio::process::Command,
    ) -> std::io::Result<(tokio::process::Child, Option<Self>)> {
        let outlives = |error| {
            tracing::warn!("a command would outlive this node if that were killed: cannot start sh: {error}");
        };
        send("").unwrap_or_else(outlives);
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            note("+", pid).unwrap_or_else(outlives);
        }
        Ok((child, pid.map(Self)))
    }

    pub(super) fn terminate(&self) {
        let _ = kill_process_group(self.0, Signal::TERM);
    }

    /// Whether any of its processes is left.
    pub(super) fn is_left(&self) -> bool {
        test_kill_process_group(self.0).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group is gone already if all of it has ended.
        let _ = kill_process_group(self.0, Signal::KILL);
        let _ = note("-", self.0);
    }
}

fn note(what: &str, group: Pid) -> std::io::Result<()> {
    send(&format!("{what} {}\n", group.as_raw_pid()))
}

/// Writes to the `sh`, and starts it if there is none.
fn send(line: &str) -> std::io::Result<()> {
    let mut shell = SHELL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = match shell.take() {
        Some(child) => child,
        None => {
            let mut command = Command::new("sh");
            command.args(["-c", LEASH]).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?
        }
    };
    let pipe = child.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
    // If somebody has killed it, the next command starts another.
    pipe.write_all(line.as_bytes())?;
    *shell = Some(child);
    Ok(())
}
