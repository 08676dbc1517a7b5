//! A false clock for a node: a few lines of C, built by the system's `cc` into the world's folder and loaded before the
//! C library, move the time of day that the node sees. Its monotonic clocks stay as they are, as they do on a real
//! machine whose time of day is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::node::NodeBuilder;

const SOURCE: &str = include_str!("false_clock.c");

/// Whether nodes can be given a false clock; says so if not.
pub fn can_be_false() -> bool {
    let quiet = Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = quiet.is_ok_and(|status| status.success());
    if !found {
        println!("SKIPPED: false clocks need a C compiler, and there is no `cc` on PATH");
    }
    found
}

impl NodeBuilder<'_> {
    /// Its machine's clock is so many seconds ahead; negative: behind. Ask [`can_be_false`] before.
    ///
    /// # Panics
    /// If there is no C compiler.
    #[must_use]
    pub fn clock(self, ahead: i64) -> Self {
        let library = library(self.world.dir());
        let library = library.to_str().expect("a temporary folder has a name in UTF-8").to_owned();
        self.env("LD_PRELOAD", &library).env("LONGSHORE_TEST_CLOCK_OFFSET", &ahead.to_string())
    }
}

/// The library in this folder, made if it is not there.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("false_clock.c"), folder.join("false_clock.so"));
    if !library.exists() {
        std::fs::write(&source, SOURCE).expect("the world's own folder can be written");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output();
        let built = built.expect("can_be_false() found a C compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
    library
}
