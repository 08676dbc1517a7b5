//! The way of spans to an exporter: bounded, and never in the way of a job.

use super::*;

use opentelemetry::trace::{SpanId, SpanKind, Status};
use std::sync::Mutex as SyncMutex;
use std::time::SystemTime;

use crate::runtime::supervision::ChildSpec;

#[derive(Debug, Default)]
struct Scripted {
    got: SyncMutex<Vec<usize>>,
    fault: SyncMutex<Option<Fault>>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Refuses,
    Hangs,
    Panics,
}

impl SpanExporter for Scripted {
    fn samples(&self, _: TraceId, _: Option<bool>) -> bool {
        true
    }

    fn export(self: Arc<Self>, spans: Vec<Span>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            let fault = *self.fault.lock().unwrap();
            match fault {
                None => {
                    self.got.lock().unwrap().push(spans.len());
                    Ok(())
                }
                Some(Fault::Refuses) => Err("no".to_owned()),
                Some(Fault::Hangs) => std::future::pending().await,
                Some(Fault::Panics) => panic!("as the test asked"),
            }
        })
    }
}

fn span() -> Span {
    let at = SystemTime::UNIX_EPOCH;
    Span {
        trace: TraceId::from_bytes([1; 16]),
        id: SpanId::from_bytes([2; 8]),
        parent: SpanId::INVALID,
        parent_is_remote: false,
        state: opentelemetry::trace::TraceState::default(),
        kind: SpanKind::Internal,
        name: "test".to_owned(),
        start: at,
        end: at,
        attributes: Vec::new(),
        link: None,
        status: Status::Unset,
    }
}

/// A tracer whose loop runs.
fn tracer(exporter: &Arc<Scripted>) -> Tracer {
    let metrics = Arc::new(Metrics::default());
    let tracer = Tracer::new(Arc::clone(exporter) as Arc<dyn SpanExporter>, metrics);
    // Its keeper is not needed here, but its mailbox is.
    let (_, mailbox) = Mailbox::new();
    tokio::spawn(run(Arc::clone(&tracer.exporting), mailbox));
    tracer
}

fn counts(tracer: &Tracer) -> (u64, u64, u64) {
    let dropped = |reason| tracer.metrics.spans_dropped.with_label_values(&[reason]).get();
    (tracer.metrics.spans_exported.get(), dropped("queue_full"), dropped("not_exported"))
}

#[tokio::test(start_paused = true)]
async fn spans_go_out_in_batches_and_none_waits_long() {
    let exporter = Arc::new(Scripted::default());
    let tracer = tracer(&exporter);
    (0..BATCH + 3).for_each(|_| tracer.take(span));
    tokio::time::sleep(LINGER * 2).await;
    assert_eq!(*exporter.got.lock().unwrap(), [BATCH, 3]);
    assert_eq!(counts(&tracer), (BATCH as u64 + 3, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_exported_is_counted_and_the_next_spans_go_out() {
    for fault in [Fault::Refuses, Fault::Hangs, Fault::Panics] {
        let exporter = Arc::new(Scripted::default());
        let tracer = tracer(&exporter);
        *exporter.fault.lock().unwrap() = Some(fault);
        tracer.take(span);
        tokio::time::sleep(LINGER * 2).await;
        // A hanging exporter: the queue fills up, and nobody waits for it.
        let mut more = 0;
        while counts(&tracer).1 == 0 && more <= 2 * QUEUE && matches!(fault, Fault::Hangs) {
            tracer.take(span);
            more += 1;
        }
        *exporter.fault.lock().unwrap() = None;
        tokio::time::sleep(EXPORT_WITHIN * 2).await;
        let lost = counts(&tracer);
        assert_eq!((lost.1, lost.2), (u64::from(matches!(fault, Fault::Hangs)), 1), "{fault:?}");
        tracer.take(span);
        tokio::time::sleep(LINGER * 2).await;
        assert_eq!(counts(&tracer).0, lost.0 + 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_flush_exports_what_waits() {
    let exporter = Arc::new(Scripted::default());
    let tracer = Tracer::new(Arc::clone(&exporter) as Arc<dyn SpanExporter>, Arc::default());
    let spec = ChildSpec::with_messages("trace-exporter", &tracer.address, Arc::clone(&tracer.exporting), run);
    let (keeper, _) = ractor::Actor::spawn(None, Idle, ()).await.unwrap();
    spec.start(keeper.get_cell()).await.unwrap();
    (0..7).for_each(|_| tracer.take(span));
    tracer.flush(Duration::from_secs(30)).await;
    assert_eq!(exporter.got.lock().unwrap().iter().sum::<usize>(), 7);
    keeper.stop(None);
}

/// A supervisor that does nothing.
struct Idle;

impl ractor::Actor for Idle {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ractor::ActorRef<()>, (): ()) -> Result<(), ractor::ActorProcessingErr> {
        Ok(())
    }
}
