//! Traces: the spans of a job, from its publisher to its end, and their way to an exporter.
//!
//! Read in this order: `context` (which trace a job belongs to, and the ids of its spans), `spans` (what is said of a
//! run), this file (who samples and takes spans, and the loop that exports them).
//!
//! A span is written down once the decision that ended it is stored, from the record alone. Its id follows from trace,
//! run, round and attempt. So no span lives in memory while a job runs, a remote handler can be sent the id beforehand,
//! and the node that settles a dead node's attempt writes the very span that the handler's own spans hang from.
//!
//! Jobs never wait for this: spans go through a channel of `QUEUE`, beyond which they are counted and dropped; an
//! exporter that fails, hangs or panics costs its spans. Without an exporter there is no `Tracer`, and nothing here
//! runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::BoxFuture;
use opentelemetry::trace::TraceId;
use ractor::RpcReplyPort;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::runtime::address::{Address, Mailbox};
use crate::runtime::supervision::LoopEnd;

pub(crate) mod context;
mod spans;

pub(crate) use context::{JobTrace, Submission, TRACE_PARENT};
pub use spans::{RequestSpan, Span};

/// Spans that may wait for the exporter: some megabytes.
const QUEUE: usize = 4_096;
const BATCH: usize = 512;
/// How long a span waits for others at most.
const LINGER: Duration = Duration::from_secs(1);
/// How long one export may take; what it was to export is then dropped.
const EXPORT_WITHIN: Duration = Duration::from_secs(10);
/// How often the log says that spans cannot be exported.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where spans go, and which traces are kept.
pub trait SpanExporter: std::fmt::Debug + Send + Sync + 'static {
    /// Whether spans of this trace are exported. `parent` says whether the publisher's own span was sampled, if there
    /// is one. The answer must be the same on all nodes.
    fn samples(&self, trace: TraceId, parent: Option<bool>) -> bool;

    /// Exports spans. Never called again before it has ended or was dropped; after ten seconds it is dropped.
    ///
    /// # Errors
    /// Why it could not: the spans are lost.
    fn export(self: Arc<Self>, spans: Vec<Span>) -> BoxFuture<'static, Result<(), String>>;
}

#[derive(Debug)]
pub(crate) struct Tracer {
    exporter: Arc<dyn SpanExporter>,
    spans: mpsc::Sender<Span>,
    taken: AtomicU64,
    metrics: Arc<Metrics>,
    /// The loop that exports.
    pub(crate) address: Address<ExporterMessage>,
    /// Its state, which outlives it.
    pub(crate) exporting: Arc<Mutex<Exporting>>,
}

#[derive(Debug)]
pub(crate) enum ExporterMessage {
    /// Answer once all spans so far are exported, or lost.
    Flush(RpcReplyPort<()>),
}

impl Tracer {
    pub(crate) fn new(exporter: Arc<dyn SpanExporter>, metrics: Arc<Metrics>) -> Self {
        let (spans, waiting) = mpsc::channel(QUEUE);
        let exporting = Exporting {
            exporter: Arc::clone(&exporter),
            waiting,
            batch: Vec::new(),
            metrics: Arc::clone(&metrics),
            said: LossLog::default(),
        };
        let exporting = Arc::new(Mutex::new(exporting));
        Self { exporter, spans, taken: AtomicU64::new(0), metrics, address: Address::default(), exporting }
    }

    /// Takes a span, unless too many wait: then it is not even made.
    fn take(&self, span: impl FnOnce() -> Span) {
        match self.spans.try_reserve() {
            Ok(place) => {
                place.send(span());
                self.taken.fetch_add(1, Relaxed);
            }
            Err(_) => self.metrics.spans_dropped.with_label_values(&["queue_full"]).inc(),
        }
    }

    /// Waits until all spans so far are exported, for so long at most: those that are not by then are lost.
    pub(crate) async fn flush(&self, within: Duration) {
        if self.address.ask(within, ExporterMessage::Flush).await.is_none() {
            // Those of the batch that the collector is just being sent among them.
            let spans = self.taken.load(Relaxed).saturating_sub(
                self.metrics.spans_exported.get()
                    + self.metrics.spans_dropped.with_label_values(&["not_exported"]).get(),
            );
            tracing::warn!(
                spans,
                "the last spans are lost: the collector has not taken them within {} s",
                within.as_secs()
            );
        }
    }
}

#[derive(Debug)]
pub(crate) struct Exporting {
    exporter: Arc<dyn SpanExporter>,
    waiting: mpsc::Receiver<Span>,
    batch: Vec<Span>,
    metrics: Arc<Metrics>,
    said: LossLog,
}

/// What the log has said of lost spans.
#[derive(Debug, Default)]
struct LossLog {
    /// When it last did.
    at: Option<Instant>,
    /// How many had been lost by then.
    lost: u64,
    /// Whether it has not said since that spans are exported again.
    open: bool,
}

pub(crate) async fn run(exporting: Arc<Mutex<Exporting>>, mut mailbox: Mailbox<ExporterMessage>) -> LoopEnd {
    let mut exporting = exporting.lock().await;
    let exporting = &mut *exporting;
    let mut due: Option<Instant> = None;
    loop {
        let room = BATCH - exporting.batch.len();
        tokio::select! {
            count = exporting.waiting.recv_many(&mut exporting.batch, room) => {
                if count == 0 {
                    return Ok(());
                }
                due = due.or_else(|| Some(Instant::now() + LINGER));
                if exporting.batch.len() >= BATCH {
                    exporting.export().await;
                    due = None;
                }
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                exporting.export().await;
                due = None;
            }
            ExporterMessage::Flush(done) = mailbox.next() => {
                exporting.export_all().await;
                due = None;
                let _ = done.send(());
            }
        }
    }
}

impl Exporting {
    async fn export_all(&mut self) {
        while let Ok(span) = self.waiting.try_recv() {
            self.batch.push(span);
            if self.batch.len() >= BATCH {
                self.export().await;
            }
        }
        self.export().await;
    }

    /// Exports the batch, in a task of its own: an exporter that panics does not end this loop.
    async fn export(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let count = batch.len() as u64;
        let mut task = tokio::spawn(Arc::clone(&self.exporter).export(batch));
        let failed = match tokio::time::timeout(EXPORT_WITHIN, &mut task).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(why))) => Some(why),
            Ok(Err(_)) => Some("the exporter panicked".to_owned()),
            Err(_) => {
                task.abort();
                Some(format!("no answer within {} s", EXPORT_WITHIN.as_secs()))
            }
        };
        match &failed {
            None => self.metrics.spans_exported.inc_by(count),
            Some(_) => self.metrics.spans_dropped.with_label_values(&["not_exported"]).inc_by(count),
        }
        self.say(failed);
    }

    /// Says in the log what was lost, once in [`WARN_EVERY`], and that it is over.
    fn say(&mut self, failed: Option<String>) {
        let dropped = |reason| self.metrics.spans_dropped.with_label_values(&[reason]).get();
        let lost = dropped("queue_full") + dropped("not_exported");
        let news = lost - self.said.lost;
        if news == 0 {
            if std::mem::take(&mut self.said.open) {
                tracing::info!("spans are exported again");
            }
        } else if self.said.at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            let why = failed.unwrap_or_else(|| "the collector takes fewer than there are".to_owned());
            self.said = LossLog { at: Some(Instant::now()), lost, open: true };
            tracing::warn!(spans = news, "spans are lost, jobs go on: {why}");
        }
    }
}

#[cfg(test)]
mod tests;
