//! What is shipped for operating a node fits the program that is shipped.

use std::path::Path;
use std::process::Command;

const UNIT: &str = include_str!("../deploy/longshore.service");

/// Given the systemd unit, when systemd reads it, then it finds nothing wrong; without systemd here, only what follows is
/// checked: its command is one of the program's, and systemd waits longer for the end than a drain may take.
#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("longshore.service");
    let binary = env!("CARGO_BIN_EXE_longshore");
    assert!(UNIT.contains("ExecStart=/usr/local/bin/longshore serve --config /etc/longshore/longshore.toml\n"));
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/longshore", binary)).unwrap();
    let said = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
    match said {
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stderr);
            // Other units of the machine may be read and complained about; this one's name is not in their lines.
            let about_it: Vec<&str> = text.lines().filter(|line| line.contains("longshore.service")).collect();
            assert!(said.status.success() && about_it.is_empty(), "{text}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/longshore.toml");
    let checked = Command::new(binary).args(["config", "check", "--config"]).arg(shipped).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let waits = UNIT.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')).unwrap();
    assert!(waits.parse::<u64>().unwrap() > 30 + 10 + 2 * 3 + 5, "grace, flush, goodbyes and closing of the lanes");
}
