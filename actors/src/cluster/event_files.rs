//! Writes the event log into files of this node, if that is set: every event of every run of the cluster, a JSON object
//! a line.
//!
//! It reads the log by itself, page by page, and the files keep how far it got. So no job waits for it, it may fall
//! behind for as long as the log keeps events, and after a restart it goes on where it was. What a crash leaves
//! undecided is written again, under the same event ids.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::remake::was_remade;
use longshore_backbone::scan::Source;

use crate::metrics::Metrics;
use crate::runtime::supervision::LoopEnd;
use crate::settings::EventFile;

/// How often the log is asked for more.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How often an idle log is asked whether it was made anew, and how often the node's log says what goes wrong.
const SLOWLY: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct EventFilesPart {
    pub(crate) backbone: Backbone,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) file: Arc<dyn EventFile>,
}

/// How far the files are.
struct Copying {
    part: EventFilesPart,
    position: u64,
    /// When the log was last asked whether it was made anew.
    asked: Option<Instant>,
}

pub(crate) async fn run(part: EventFilesPart) -> LoopEnd {
    let file = Arc::clone(&part.file);
    let position = blocking(move || file.position()).await?;
    let mut copying = Copying { part, position, asked: None };
    let mut warned: Option<Instant> = None;
    loop {
        match copying.next_page().await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(why) => {
                if warned.is_none_or(|warned| warned.elapsed() >= SLOWLY) {
                    tracing::warn!("events are not in their file yet, trying again: {why}");
                    warned = Some(Instant::now());
                }
            }
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

impl Copying {
    /// Writes the next page; says whether there may be more.
    async fn next_page(&mut self) -> Result<bool, String> {
        let EventFilesPart { backbone, file, .. } = &self.part;
        let page = backbone.page(&Source::Events, &backbone.names().event_log("*"), self.position + 1).await;
        let page = page.map_err(|error| error.with_causes())?;
        let (Some(first), Some(last)) = (page.messages.first(), page.messages.last()) else {
            self.check_whether_it_is_new().await?;
            return Ok(false);
        };
        self.count_gone(first.sequence);
        let (mut lines, position) = (Vec::new(), last.sequence);
        for stored in &page.messages {
            lines.extend_from_slice(&stored.payload);
            if stored.payload.last().is_some_and(|byte| *byte != b'\n') {
                lines.push(b'\n');
            }
        }
        let file = Arc::clone(file);
        let written = blocking(move || file.append(&lines, position)).await;
        if written.is_err() {
            self.part.metrics.audit_failures.with_label_values(&["events_file"]).inc();
        }
        written?;
        self.position = position;
        Ok(page.next.is_some())
    }

    /// The log dropped messages before they were written: they were too old, or too many.
    fn count_gone(&self, first: u64) {
        let gone = first.saturating_sub(self.position + 1);
        if self.position > 0 && was_remade(self.position, first) {
            tracing::warn!(
                "the event log had been deleted and was made again: its events are written from the first one"
            );
        } else if self.position > 0 && gone > 0 {
            self.part.metrics.audit_failures.with_label_values(&["events_file"]).inc_by(gone);
            tracing::error!(
                messages = gone,
                "the event log dropped events before they were in their file: storage.events_max_age, events_max_bytes"
            );
        }
    }

    /// A log that was made anew counts from 1 again.
    async fn check_whether_it_is_new(&mut self) -> Result<(), String> {
        if self.asked.is_some_and(|asked| asked.elapsed() < SLOWLY) {
            return Ok(());
        }
        let (_, last) = self.part.backbone.sequences(&Source::Events).await.map_err(|error| error.with_causes())?;
        self.asked = Some(Instant::now());
        if last < self.position {
            tracing::warn!("the event log was made anew: its events are written from the first one");
            self.position = 0;
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}
