//! Which trace a job belongs to, in the terms of W3C Trace Context, and the ids of the job's spans.

use std::sync::Arc;

use longshore_backbone::Headers;
use longshore_backbone::service::TraceContext;
use longshore_backbone::wire::header;
use longshore_domain::run::Attempt;
use longshore_domain::trace::write_hex;
use longshore_domain::{Run, RunId, Tenant, Timestamp};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use crate::trace::Tracer;

/// The header that holds a span's context.
pub(crate) const TRACE_PARENT: &str = "traceparent";
/// The header that holds what tracing systems add to it.
const TRACE_STATE: &str = "tracestate";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobTrace {
    pub(crate) id: TraceId,
    /// The span that this job's spans hang from: its publisher's, or that of its submission or replay.
    pub(crate) parent: SpanId,
    pub(crate) is_sampled: bool,
    /// Its publisher sent no context: `parent` is made up, and written by the node that ends its first attempt.
    pub(crate) is_own: bool,
    /// What the publisher's tracing system has added, as its header has it.
    pub(crate) state: Option<Arc<str>>,
}

impl JobTrace {
    /// The trace of a job with these headers; if they name none, one that follows from its run's id and from when its
    /// message was stored, so that all nodes that get the message agree.
    pub(crate) fn of(
        tracer: &Tracer,
        headers: Option<&Headers>,
        tenant: &Tenant,
        run: &RunId,
        stored_at: Timestamp,
    ) -> Self {
        if let Some((id, parent, was_sampled)) = headers.and_then(context_in) {
            let is_sampled = tracer.exporter.samples(id, Some(was_sampled));
            let state = headers.filter(|_| is_sampled).and_then(state_in);
            return Self { id, parent, is_sampled, is_own: false, state };
        }
        let (tenant, run) = (tenant.as_str().as_bytes(), run.as_str().as_bytes());
        let hash = hash_of(&[b"longshore trace\0", tenant, &[0], run, &stored_at.millis().to_be_bytes()]);
        let (id, parent) = (TraceId::from_bytes(first(&hash)), SpanId::from_bytes(first(&hash[16..])));
        Self { id, parent, is_sampled: tracer.exporter.samples(id, None), is_own: true, state: None }
    }

    /// The span of an attempt, whichever node writes it.
    pub(crate) fn attempt(&self, run: &Run, attempt: &Attempt) -> SpanId {
        self.span("attempt", run, [attempt.round, attempt.attempt, attempt.start])
    }

    /// The span of the wait before an attempt.
    pub(crate) fn wait(&self, run: &Run, attempt: &Attempt) -> SpanId {
        self.span("wait", run, [attempt.round, attempt.attempt, attempt.start])
    }

    /// The span of a wait that no attempt ended.
    pub(crate) fn last_wait(&self, run: &Run) -> SpanId {
        self.span("end", run, [run.round, run.attempt, run.deferrals])
    }

    /// The span of the dead letter of a round.
    pub(crate) fn dead_letter(&self, run: &Run, round: u32) -> SpanId {
        self.span("dead letter", run, [round, 0, 0])
    }

    /// The span of the replay that began a round.
    pub(crate) fn replay(&self, run: &Run) -> SpanId {
        self.span("replay", run, [run.round, 0, 0])
    }

    fn span(&self, what: &str, run: &Run, numbers: [u32; 3]) -> SpanId {
        let (tenant, run) = (run.tenant.as_str().as_bytes(), run.run_id.as_str().as_bytes());
        let numbers = numbers.map(u32::to_be_bytes);
        let id = self.id.to_bytes();
        let hash = hash_of(&[&id, what.as_bytes(), &[0], tenant, &[0], run, numbers.as_flattened()]);
        SpanId::from_bytes(first(&hash))
    }

    /// A span of this trace, as the header passes it to others.
    pub(crate) fn text(&self, span: SpanId) -> String {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.id.to_bytes(), &mut text[3..35]);
        write_hex(&span.to_bytes(), &mut text[36..52]);
        text[54] += u8::from(self.is_sampled);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A span of this trace, as a link names it.
    pub(crate) fn context(&self, span: SpanId) -> SpanContext {
        let flags = if self.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
        SpanContext::new(self.id, span, flags, true, self.state())
    }

    /// What its spans say beside their ids; nothing if that cannot be read.
    pub(crate) fn state(&self) -> TraceState {
        self.state.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Puts a span of this trace into headers, in place of the one there.
    pub(crate) fn put(&self, span: SpanId, headers: &mut Headers) {
        if header::has(headers, TRACE_PARENT) {
            *headers = header::without(headers, TRACE_PARENT);
        }
        headers.insert(TRACE_PARENT, self.text(span));
    }
}

/// Puts what a tracing system has added beside the context, unless it is there. It is left out if it is longer than
/// what the standard has everybody pass on.
pub(crate) fn put_state(state: Option<&str>, headers: &mut Headers) {
    const PASSED_ON: usize = 512;
    let state = state.filter(|state| state.len() <= PASSED_ON);
    if let Some(state) = state.filter(|_| !header::has(headers, TRACE_STATE)) {
        headers.insert(TRACE_STATE, state);
    }
}

/// Puts the context of a request into the headers of the job that it submits, unless they name one.
pub(crate) fn pass_on(outer: Option<&TraceContext>, headers: &mut Headers) {
    let Some(outer) = outer.filter(|outer| parse(&outer.parent).is_some()) else { return };
    if !header::has(headers, TRACE_PARENT) {
        headers.insert(TRACE_PARENT, outer.parent.trim());
        put_state(outer.state.as_deref(), headers);
    }
}

/// A submission that has a span.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    /// The trace of its job, whose spans hang from the submission's.
    pub(crate) trace: JobTrace,
    /// The span above its own.
    pub(crate) above: Option<SpanId>,
}

impl Submission {
    /// In the trace that its headers name, else in that of `outer`, else in a new one.
    pub(crate) fn new(tracer: &Tracer, headers: &Headers, outer: Option<&TraceContext>) -> Self {
        let own_context = context_in(headers);
        let known = own_context.or_else(|| parse(&outer?.parent));
        let own = SpanId::from_bytes(rand::random::<u64>().to_be_bytes());
        let id = known.map_or_else(|| TraceId::from_bytes(rand::random::<u128>().to_be_bytes()), |(id, ..)| id);
        let is_sampled = tracer.exporter.samples(id, known.map(|(.., sampled)| sampled));
        let state = match own_context {
            Some(_) => state_in(headers),
            None => known.and(outer).and_then(|outer| outer.state.as_deref()).map(Arc::from),
        };
        let trace = JobTrace { id, parent: own, is_sampled, is_own: false, state };
        Self { trace, above: known.map(|(_, parent, _)| parent) }
    }
}

pub(crate) fn id_in(headers: Option<&Headers>) -> Option<longshore_domain::TraceId> {
    id_named(header::value_of(headers?, TRACE_PARENT)?)
}

/// The trace id of a span's context, as a header has it.
pub(crate) fn id_named(text: &str) -> Option<longshore_domain::TraceId> {
    parse(text).map(|(id, ..)| longshore_domain::TraceId(u128::from_be_bytes(id.to_bytes())))
}

fn context_in(headers: &Headers) -> Option<(TraceId, SpanId, bool)> {
    parse(header::value_of(headers, TRACE_PARENT)?)
}

fn state_in(headers: &Headers) -> Option<Arc<str>> {
    header::value_of(headers, TRACE_STATE).map(Arc::from)
}

/// Reads a `traceparent`, also of a later version; `None` if it is not valid, which counts as absent.
fn parse(text: &str) -> Option<(TraceId, SpanId, bool)> {
    let (head, rest) = text.trim().split_at_checked(55)?;
    let mut parts = head.split('-');
    let [version, id, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_known = is_hex(version, 2) && version != "ff" && parts.next().is_none();
    let ends = if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
    if !(is_known && ends && is_hex(id, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
        return None;
    }
    let (id, span) = (TraceId::from_hex(id).ok()?, SpanId::from_hex(span).ok()?);
    let is_valid = id != TraceId::INVALID && span != SpanId::INVALID;
    is_valid.then_some((id, span, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

/// Hashed at once: piece by piece costs twice as much.
fn hash_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut all = SmallVec::<[u8; 192]>::new();
    parts.iter().for_each(|part| all.extend_from_slice(part));
    Sha256::digest(&all).into()
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut id = [0; N];
    id.copy_from_slice(&bytes[..N]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Span, SpanExporter};
    use futures_util::future::BoxFuture;

    #[test]
    fn a_span_is_written_as_the_standard_formatter_would_write_it() {
        for is_sampled in [false, true] {
            let (id, parent) = (TraceId::from_bytes([0xa7; 16]), SpanId::from_bytes([0x0f; 8]));
            let trace = JobTrace { id, parent, is_sampled, is_own: true, state: None };
            assert_eq!(trace.text(parent), format!("00-{id}-{parent}-{:02x}", u8::from(is_sampled)));
            assert_eq!(parse(&trace.text(parent)), Some((id, parent, is_sampled)));
        }
    }

    /// Keeps the traces that its publishers keep, and of the others all.
    #[derive(Debug)]
    struct Nowhere;

    impl SpanExporter for Nowhere {
        fn samples(&self, _: TraceId, parent: Option<bool>) -> bool {
            parent.unwrap_or(true)
        }

        fn export(self: Arc<Self>, _: Vec<Span>) -> BoxFuture<'static, Result<(), String>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    fn tracer() -> Tracer {
        Tracer::new(Arc::new(Nowhere), Arc::default())
    }

    const PUBLISHERS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const ANOTHERS: &str = "00-11111111111111111111111111111111-2222222222222222-01";

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().fold(Headers::new(), |mut headers, (name, value)| {
            headers.insert(*name, *value);
            headers
        })
    }

    fn of(headers: Option<&Headers>, tenant: &str, run: &str, stored_at: i64) -> JobTrace {
        let (tenant, run) = (Tenant::parse(tenant).unwrap(), RunId::parse(run).unwrap());
        JobTrace::of(&tracer(), headers, &tenant, &run, Timestamp::from_millis(stored_at))
    }

    #[test]
    fn all_nodes_agree_on_the_trace_of_a_job_whose_publisher_sent_none() {
        let trace = of(None, "acme", "main-p5-7", 1_000);
        assert!(trace.is_own && trace.is_sampled && trace.id != TraceId::INVALID && trace.parent != SpanId::INVALID);
        assert_eq!(trace, of(Some(&headers(&[("X-Own", "1")])), "acme", "main-p5-7", 1_000));
        // A later run of that id, in a lane that was made anew, is another one.
        for other in [("acme", "main-p5-8", 1_000), ("other", "main-p5-7", 1_000), ("acme", "main-p5-7", 1_001)] {
            assert_ne!(of(None, other.0, other.1, other.2).id, trace.id, "{other:?}");
        }
    }

    #[test]
    fn a_job_belongs_to_the_trace_that_its_publisher_names_and_is_kept_if_that_is() {
        let kept = of(Some(&headers(&[("Traceparent", PUBLISHERS), ("tracestate", "a=1")])), "acme", "r", 0);
        assert_eq!(kept.text(kept.parent), PUBLISHERS);
        assert!(!kept.is_own && kept.state().get("a") == Some("1"));
        let dropped = headers(&[("traceparent", &PUBLISHERS.replace("-01", "-00")), ("tracestate", "a=1")]);
        let dropped = of(Some(&dropped), "acme", "r", 0);
        assert_eq!((dropped.is_sampled, dropped.state), (false, None), "nothing will say its state");
        let unreadable = of(Some(&headers(&[("traceparent", "00-1-2-3")])), "acme", "r", 0);
        assert!(unreadable.is_own, "what cannot be read counts as absent");
    }

    #[test]
    fn a_submission_is_in_the_trace_of_its_headers_before_that_of_its_request() {
        let outer = TraceContext { parent: ANOTHERS.to_owned(), state: Some("b=2".to_owned()) };
        let begun = |headers: &Headers, outer| {
            let Submission { trace, above } = Submission::new(&tracer(), headers, outer);
            assert!(Some(trace.parent) != above, "the submission has a span of its own");
            (trace.id.to_string(), above.map(|above| above.to_string()), trace.state.as_deref().map(str::to_owned))
        };
        let id = |context: &str| (context[3..35].to_owned(), Some(context[36..52].to_owned()));
        let own = headers(&[("traceparent", PUBLISHERS), ("tracestate", "a=1")]);
        let (trace, above) = id(PUBLISHERS);
        assert_eq!(begun(&own, Some(&outer)), (trace, above, Some("a=1".to_owned())));
        let (trace, above) = id(ANOTHERS);
        assert_eq!(begun(&Headers::new(), Some(&outer)), (trace, above, Some("b=2".to_owned())));
        let (first, second) = (begun(&Headers::new(), None), begun(&Headers::new(), None));
        assert!(first.1.is_none() && first.0 != second.0, "else each is a trace of its own");
        let broken = TraceContext { parent: "00".to_owned(), state: Some("b=2".to_owned()) };
        assert_eq!(begun(&Headers::new(), Some(&broken)).2, None, "a state belongs to its trace");
    }

    #[test]
    fn a_handler_finds_the_nodes_span_in_place_of_its_publishers_and_what_goes_along_with_it() {
        let mut job_headers = headers(&[("Traceparent", PUBLISHERS), ("X-Own", "1")]);
        let mut trace = of(Some(&job_headers), "acme", "r", 0);
        let span = SpanId::from_bytes([7; 8]);
        trace.put(span, &mut job_headers);
        assert_eq!(header::value_of(&job_headers, TRACE_PARENT), Some(trace.text(span).as_str()));
        assert_eq!(
            job_headers.iter().filter(|(name, _)| name.to_string().eq_ignore_ascii_case(TRACE_PARENT)).count(),
            1
        );

        trace.state = Some("a=1".into());
        put_state(trace.state.as_deref(), &mut job_headers);
        assert_eq!(header::value_of(&job_headers, TRACE_STATE), Some("a=1"));
        trace.state = Some("a=2".into());
        put_state(trace.state.as_deref(), &mut job_headers);
        assert_eq!(header::value_of(&job_headers, TRACE_STATE), Some("a=1"), "the job's own stays");
        let mut other = Headers::new();
        trace.state = Some(format!("a={}", "1".repeat(511)).into());
        put_state(trace.state.as_deref(), &mut other);
        assert!(other.is_empty(), "longer than what everybody passes on");
    }

    #[test]
    fn a_context_is_read_by_the_rules_of_w3c() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let (id, span, sampled) = parse(good).unwrap();
        assert_eq!((id.to_string(), span.to_string()), (good[3..35].to_owned(), good[36..52].to_owned()));
        assert!(
            sampled && parse(&good.replace("-01", "-03")).unwrap().2 && !parse(&good.replace("-01", "-00")).unwrap().2
        );
        assert!(parse(&format!("cc{}-more", &good[2..])).is_some(), "a later version may have more");
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &format!("ff{}", &good[2..]),
            &format!("{good}-more"),
            &good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &good.replace('-', "_"),
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "ä0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
