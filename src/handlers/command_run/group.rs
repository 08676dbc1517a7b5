//! The process group of a command, which ends with the value that stands for it, and with this process, however that
//! ends.
//!
//! For the latter, a tiny `sh` reads from a pipe whose other end only this process holds, and keeps a list of the
//! groups. When the pipe ends, it kills what is on the list. (Linux could do this by `PR_SET_PDEATHSIG`, but setting
//! that between fork and exec needs `unsafe`.)

use std::collections::BTreeSet;
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

/// The `sh`, once there was a command, and the groups on its list.
struct WatchingShell {
    shell: Option<Child>,
    groups: BTreeSet<i32>,
}

static WATCH: Mutex<WatchingShell> = Mutex::new(WatchingShell { shell: None, groups: BTreeSet::new() });

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
            tracing::warn!("commands would outlive this node if that were killed: no sh watches over them: {error}");
        };
        note("", None).unwrap_or_else(outlives);
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            note("+", Some(pid)).unwrap_or_else(outlives);
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
        let _ = note("-", Some(self.0));
    }
}

/// Changes the list, and starts an `sh` if there is none. If somebody has killed it, another gets the whole list: until
/// a command starts or ends, none watches.
fn note(what: &str, group: Option<Pid>) -> std::io::Result<()> {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let group = group.map(Pid::as_raw_pid);
    if let Some(group) = group {
        if what == "+" {
            watch.groups.insert(group)
        } else {
            watch.groups.remove(&group)
        };
    }
    if let Some(shell) = &mut watch.shell
        && shell.try_wait()?.is_none()
    {
        let line = group.map_or_else(String::new, |group| format!("{what} {group}\n"));
        if write(shell, &line).is_ok() {
            return Ok(());
        }
        // It is dying; were it not, it would kill what is on its list as its pipe ends.
        shell.kill()?;
        shell.wait()?;
    }
    let mut command = Command::new("sh");
    command.args(["-c", LEASH]).process_group(0);
    let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let list: String = watch.groups.iter().map(|group| format!("+ {group}\n")).collect();
    write(&mut shell, &list)?;
    watch.shell = Some(shell);
    Ok(())
}

fn write(shell: &mut Child, text: &str) -> std::io::Result<()> {
    shell.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn sleeping() -> (tokio::process::Child, Option<Group>) {
        Group::spawn(tokio::process::Command::new("sleep").arg("60").process_group(0).kill_on_drop(true)).unwrap()
    }

    fn with_shell<T>(work: impl FnOnce(&mut Child) -> T) -> T {
        work(WATCH.lock().unwrap().shell.as_mut().expect("a command was started"))
    }

    /// Given commands, one of them older than the death of the `sh`, when this process ends, which ends the pipe, then
    /// all of them end.
    #[tokio::test]
    async fn a_new_sh_keeps_all_groups_after_the_death_of_another() {
        let (mut first, _group) = sleeping();
        with_shell(|shell| {
            shell.kill().unwrap();
            shell.wait().unwrap();
        });
        let (mut second, _other) = sleeping();
        let ended = sleeping();
        drop(ended);
        with_shell(|shell| {
            drop(shell.stdin.take());
            assert!(shell.wait().unwrap().success());
        });
        for command in [&mut first, &mut second] {
            assert_eq!(command.wait().await.unwrap().signal(), Some(9));
        }
    }
}
