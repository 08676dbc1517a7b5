//! The version that a nats-server binary reports, and the oldest one that Longshore supports.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// The oldest server Longshore works with: from here on clients cannot move or keep schedules by forged headers.
pub const OLDEST: Version = Version { major: 2, minor: 14, patch: 5 };

/// A binary that does not print its version within this time is not a nats-server.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// A released version; the part after a hyphen (`-RC.1`) is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// Parses the output of `nats-server --version`: `nats-server: v2.15.1`.
    fn parse(printed: &str) -> Option<Version> {
        let number = printed.trim().strip_prefix("nats-server:")?.trim().trim_start_matches('v');
        let number = number.split(['-', '+']).next()?;
        let mut parts = number.split('.').map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        Some(Version { major, minor, patch })
    }

    /// Runs `binary --version`. Fails if it cannot be run, hangs, or prints something else.
    pub(crate) async fn of(binary: &Path) -> io::Result<Version> {
        let mut command = Command::new(binary);
        command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(ANSWERS_WITHIN, command.output())
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it printed no version and did not end"))??;
        let printed = String::from_utf8_lossy(&output.stdout);
        Version::parse(&printed).ok_or_else(|| {
            let said = printed.lines().next().unwrap_or("nothing").to_owned();
            io::Error::new(io::ErrorKind::InvalidData, format!("asked for its version it printed: {said}"))
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// True if the binary runs and is new enough; a binary that does not run counts as absent.
pub(crate) async fn is_new_enough(binary: &Path) -> bool {
    match Version::of(binary).await {
        Ok(version) if version >= OLDEST => true,
        Ok(version) => {
            tracing::info!(binary = %binary.display(), %version, needed = %OLDEST, "passing over a nats-server that is too old");
            false
        }
        Err(reason) => {
            tracing::debug!(binary = %binary.display(), %reason, "passing over a nats-server that does not run");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_server_prints() {
        assert_eq!(Version::parse("nats-server: v2.15.1\n").unwrap().to_string(), "2.15.1");
        assert_eq!(Version::parse("nats-server: v2.16.0-RC.1\n").unwrap().to_string(), "2.16.0");
        for other in ["", "2.15.1", "nats-server: v2.15", "nats-server: v2.15.1.4", "nats-server: vx.y.z", "Python 3"] {
            assert_eq!(Version::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn versions_are_ordered_by_number_not_by_text() {
        let old = Version::parse("nats-server: v2.9.25").unwrap();
        assert!(old < OLDEST);
        assert!(Version::parse("nats-server: v2.14.5").unwrap() >= OLDEST);
        assert!(Version::parse("nats-server: v2.15.0").unwrap() > OLDEST);
    }
}
