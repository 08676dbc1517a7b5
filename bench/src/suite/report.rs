//! What the suite writes: the figures as JSON, one table, and a plot of each scene.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;
use serde::Serialize;

use super::legs::Scene;
use super::plot;
use crate::args::Scale;
use crate::machine::class;
use crate::table::{digits, figure, median, spread};

/// When, where and on what it was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    date: String,
    scale: String,
    commit: String,
    machine: String,
    versions: String,
    pub scenes: Vec<Scene>,
    /// Peers that were left out, and what to install.
    pub skipped: Vec<String>,
}

impl Report {
    /// An empty one, of now.
    pub(super) fn new(scale: Scale, longshore: &Path, nats_server: &str) -> Report {
        let said = |command: &mut Command| {
            let output = command.output().ok().filter(|output| output.status.success());
            output.map_or_else(
                || "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        let product = said(Command::new(longshore).arg("--version"));
        Report {
            date: format!("{:.0}", Timestamp::now()),
            scale: format!("{scale:?}").to_lowercase(),
            commit: said(Command::new("git").args(["describe", "--always", "--dirty"])),
            machine: class(),
            versions: format!("{product}, nats-server {nats_server}"),
            scenes: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Writes all that is known so far, so that a suite that is cut off leaves what it has.
    pub(super) fn write(&self, out: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(out)?;
        fs::write(out.join("results.json"), serde_json::to_string_pretty(self)?)?;
        fs::write(out.join("table.md"), self.table())?;
        let caption = format!("{}, {}; {} at the start.", self.date, self.commit, self.machine);
        for scene in &self.scenes {
            fs::write(out.join(format!("{}.svg", scene.name)), plot::svg(scene, &caption))?;
        }
        Ok(())
    }

    fn table(&self) -> String {
        let Report { date, scale, commit, machine, versions, .. } = self;
        let mut text = format!("{date}, scale {scale}, bench {commit}, {versions}. {machine} at the start.\n");
        for scene in &self.scenes {
            let _ = write!(
                text,
                "\n### {}\n\n| | | min / median / max | of bare | CPU µs/job | load |\n|---|---|---|---|---|---|\n",
                scene.title
            );
            for row in &scene.rows {
                let digits = digits(median(&row.values).unwrap_or(0.0));
                let ratio = match row.of_bare.as_slice() {
                    [] => "–".to_owned(),
                    ratios => spread(ratios, 2),
                };
                let micros = median(&row.cpu_micros_per_job).map_or_else(|| "–".to_owned(), figure);
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {ratio} | {micros} | {} |",
                    row.leg,
                    row.unit,
                    spread(&row.values, digits),
                    spread(&row.load, 1)
                );
            }
            let mut noted: Vec<String> = scene
                .rows
                .iter()
                .filter(|row| !row.note.is_empty())
                .map(|row| format!("{}: {}", row.leg, row.note))
                .collect();
            noted.dedup();
            noted.iter().for_each(|note| {
                let _ = writeln!(text, "\n{note}.");
            });
            scene.failed.iter().for_each(|failed| {
                let _ = writeln!(text, "\n**Failed**: {failed}");
            });
        }
        self.skipped.iter().for_each(|skipped| {
            let _ = writeln!(text, "\n**Skipped**: {skipped}");
        });
        text
    }
}
