//! The tutorial's commands work as they are printed.
//!
//! Blocks of `docs/tutorial.md` that say `sh` are run, in order, in a folder of their own; a block `text` behind one is
//! what it prints, in lines that stand in this order, `…` for any text. `background` goes on until the end; `once` is
//! not run, as the program is built; `network` may fail where no package can be had, and then the blocks that say
//! `python` are left out. `dev` joins the test's server, because its usual port may be taken.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use longshore_natsd::{Log, Process};

use crate::world;

/// A block of the page: its marks, its text, and what it is to print.
struct Block {
    marks: Vec<String>,
    script: String,
    prints: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fences = page.split("\n```");
    fences.next();
    // Every second piece lies between two fences.
    for block in fences.step_by(2) {
        let (marks, text) = block.split_once('\n').unwrap();
        let marks: Vec<String> = marks.split(' ').map(str::to_owned).collect();
        match marks[0].as_str() {
            "sh" => blocks.push(Block { marks, script: text.to_owned(), prints: String::new() }),
            "text" => blocks.last_mut().unwrap().prints = text.to_owned(),
            _ => {}
        }
    }
    blocks
}

/// Whether `printed` has all of `wanted`'s lines, in their order.
fn has(printed: &str, wanted: &str) -> bool {
    let mut lines = printed.lines();
    wanted.lines().all(|wanted| lines.any(|line| matches(line, wanted)))
}

fn matches(line: &str, wanted: &str) -> bool {
    let mut parts = wanted.trim_end().split('…');
    let Some(mut rest) = line.trim_end().strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_open = true;
    }
    rest.is_empty() || is_open && wanted.trim_end().ends_with('…')
}

#[test]
fn what_is_printed_is_compared_line_by_line() {
    assert!(has("a\nrun        main-p5-1\nb", "run        main-p5-…"));
    assert!(has("x retryable: one", "…retryable: one") && !has("x retryable: one more", "…retryable: one"));
    assert!(!has("b\na", "a\nb"));
}

/// Given a newcomer, when all steps of the tutorial are taken in their order, then each prints what the page says.
#[tokio::test]
async fn every_step_of_the_tutorial_works() {
    let world = world().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("examples"), folder.path().join("examples")).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.arg("-ec").arg(script.replace("longshore dev --ephemeral", "exec longshore dev --server $NATS_URL"));
        command.current_dir(folder.path()).env("NATS_URL", world.urls()).env("PATH", &path);
        command.env("LONGSHORE_HTTP__LISTEN", "off").env("COLUMNS", "200");
        command
    };
    let log = Arc::new(Log::open(folder.path().join("background.log")).unwrap());
    let (mut background, mut has_python) = (Vec::new(), true);
    let page = std::fs::read_to_string(root.join("docs/tutorial.md")).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() > 10, "the page's blocks are found");
    for block in blocks {
        let is = |mark: &str| block.marks.iter().any(|found| found == mark);
        if is("once") || (is("python") && !has_python) {
            continue;
        }
        if is("background") {
            let (out, err, mark) = (Arc::clone(&log), Arc::clone(&log), log.mark());
            let out = Box::new(move |line: &str| out.push(line));
            background.push(Process::spawn(shell(&block.script), out, Box::new(move |line| err.push(line))).unwrap());
            // Both say what to do next once they are there.
            let ready = log.seen(mark, |line| line.contains("Ctrl-C"));
            assert!(tokio::time::timeout(Duration::from_secs(60), ready).await.is_ok(), "{}", log.tail(40));
            continue;
        }
        let mut command = shell(&block.script);
        let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let printed = String::from_utf8_lossy(&said.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&said.stderr).into_owned();
        if is("network") && !said.status.success() {
            eprintln!("no packages for Python can be had here, its steps are left out: {complaint}");
            has_python = false;
            continue;
        }
        let report = format!("{}\nprinted:\n{printed}\n{complaint}\nthe page says:\n{}", block.script, block.prints);
        assert!(said.status.success() && has(&printed, &block.prints), "{report}");
    }
    background.iter().for_each(Process::kill_now);
}

/// What README.md shows of the examples stands in them, and so is what the other tests run.
#[test]
fn the_readme_shows_the_examples_as_they_are() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let examples = [read("examples/produce.py"), read("examples/render.py")];
    let readme = read("README.md");
    let shown: Vec<&str> =
        readme.split("```python\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    assert!(shown.len() >= 4, "{shown:?}");
    for block in shown {
        assert!(examples.iter().any(|example| example.contains(block)), "in neither of them:\n{block}");
    }
}
