//! Where traces go: an OTLP exporter, by the settings of `[telemetry]` and OpenTelemetry's own environment variables.
//!
//! It only turns spans into OTLP and sends them. Which spans there are, how many may wait and what happens if a
//! collector fails is decided in `longshore_actors::trace`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longshore_actors::handler::BoxFuture;
use longshore_actors::trace::{Span, SpanExporter};
use opentelemetry::trace::{Link, SpanContext, TraceFlags, TraceId};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    Sampler, SamplingDecision, ShouldSample as _, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
};

use crate::config::not_a_collector;
pub use crate::config::{TraceProtocol as Protocol, TraceSettings as Settings};

/// Why traces cannot be exported as the settings say.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The endpoint, the protocol or another setting is not valid.
    #[error("traces: the exporter cannot be made ([telemetry], OTEL_EXPORTER_OTLP_…)")]
    Exporter(#[from] ExporterBuildError),
    /// A variable has a value that means nothing.
    #[error("{variable} is {value:?}: {right}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        right: &'static str,
    },
    /// The certificates that the system trusts cannot be read.
    #[error("traces: the system's certificates cannot be read")]
    Certificates(#[source] std::io::Error),
}

/// The exporter of a node of this name; `None`: no endpoint is set, or OpenTelemetry is turned off.
///
/// # Errors
/// A setting or variable is not valid.
pub fn exporter(settings: &Settings, node: &str) -> Result<Option<Arc<dyn SpanExporter>>, TraceError> {
    exporter_by(settings, node, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn exporter_by(
    settings: &Settings,
    node: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Arc<dyn SpanExporter>>, TraceError> {
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    let own = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let endpoint = settings.endpoint.clone().or(own).or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let Some(endpoint) = endpoint.filter(|_| !is_off) else { return Ok(None) };
    mean_something(&variable)?;
    let mut exporter = match protocol(settings, &variable)? {
        Protocol::Http => http(settings, &endpoint)?,
        Protocol::Grpc => {
            let builder = opentelemetry_otlp::SpanExporter::builder().with_tonic();
            match &settings.endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build()?,
                None => builder.build()?,
            }
        }
    };
    exporter.set_resource(&resource(settings, node, &variable));
    let scope = InstrumentationScope::builder("longshore").with_version(env!("CARGO_PKG_VERSION")).build();
    Ok(Some(Arc::new(Otlp { exporter, sampling: Sampling::of(settings, &variable)?, scope })))
}

/// Refuses values of variables that the exporter would pass over without a word. Those that may be secret are not
/// shown.
fn mean_something(variable: impl Fn(&str) -> Option<String>) -> Result<(), TraceError> {
    let refuse = |names: &[&'static str], right, is_secret, is_right: fn(&str) -> bool| {
        let is_wrong = |name: &&'static str| Some((*name, variable(name).filter(|value| !is_right(value))?));
        let Some((variable, value)) = names.iter().find_map(is_wrong) else { return Ok(()) };
        Err(TraceError::Variable { variable, value: if is_secret { "…".to_owned() } else { value }, right })
    };
    let names = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    let right = "a URL with http:// or https:// and a host, without a user";
    refuse(&names, right, true, |value| not_a_collector(value).is_none())?;
    let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
    refuse(&names, "name=value, several with commas between them", true, |value| {
        value.split(',').all(|each| each.contains('=') || each.trim().is_empty())
    })?;
    let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
    refuse(&names, "a number of milliseconds", false, |value| value.parse::<u32>().is_ok())?;
    let right = "key=value, several with commas between them";
    refuse(&["OTEL_RESOURCE_ATTRIBUTES"], right, false, |value| {
        value.split(',').all(|each| each.contains('=') || each.trim().is_empty())
    })?;
    refuse(&["OTEL_TRACES_EXPORTER"], "otlp or none", false, |value| value == "otlp")?;
    refuse(&["OTEL_SDK_DISABLED"], "true or false", false, |value| {
        ["true", "false"].iter().any(|each| value.eq_ignore_ascii_case(each))
    })
}

fn protocol(settings: &Settings, variable: impl Fn(&str) -> Option<String>) -> Result<Protocol, TraceError> {
    if let Some(protocol) = settings.protocol {
        return Ok(protocol);
    }
    let names = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
    let Some((name, value)) = names.into_iter().find_map(|name| Some((name, variable(name)?))) else {
        return Ok(Protocol::Http);
    };
    let right = "http/protobuf or grpc";
    Protocol::parse(&value).ok_or(TraceError::Variable { variable: name, value, right })
}

fn http(settings: &Settings, endpoint: &str) -> Result<opentelemetry_otlp::SpanExporter, TraceError> {
    let mut builder = opentelemetry_otlp::SpanExporter::builder().with_http();
    if endpoint.starts_with("https:") {
        let connector =
            hyper_rustls::HttpsConnectorBuilder::new().with_native_roots().map_err(TraceError::Certificates)?;
        let connector = connector.https_only().enable_http1().build();
        builder = builder.with_http_client(HyperClient::new(connector, SEND_WITHIN, None));
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')));
    }
    Ok(builder.build()?)
}

/// How long one request over https may take.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// Who says all this.
fn resource(settings: &Settings, node: &str, variable: impl Fn(&str) -> Option<String>) -> Resource {
    let named = variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    let mut builder = Resource::builder();
    if let Some(name) = settings.service_name.clone() {
        builder = builder.with_service_name(name);
    } else if variable("OTEL_SERVICE_NAME").is_none() && !named {
        builder = builder.with_service_name("longshore");
    }
    builder
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", node.to_owned()),
        ])
        .build()
}

/// Which traces are exported.
#[derive(Debug)]
struct Sampling {
    /// What the publisher decided counts.
    by_parent: bool,
    /// What counts else.
    root: Sampler,
    /// Beyond so many a second fewer of these are exported, if nobody has said which.
    thinning: Option<Mutex<Thinning>>,
}

/// If nobody has said otherwise, a node exports about so many traces a second that no publisher has decided on. They
/// cost some 12 µs each: so traces take about a hundredth of a processor, however many jobs there are.
const TRACES_PER_SECOND: f64 = 1_000.0;

/// Keeps traces to about [`TRACES_PER_SECOND`], by their ids: nodes that have much the same to do choose the same ones.
#[derive(Debug)]
struct Thinning {
    /// When the present second began.
    since: Instant,
    /// Traces in it so far.
    count: u64,
    /// Traces in the second before.
    before: u64,
}

impl Thinning {
    fn new(now: Instant) -> Self {
        Self { since: now, count: 0, before: 0 }
    }

    /// A trace begins: the share of all such traces that is exported.
    fn ratio(&mut self, now: Instant) -> f64 {
        const SECOND: Duration = Duration::from_secs(1);
        let passed = now.saturating_duration_since(self.since);
        if passed >= SECOND {
            self.before = if passed < 2 * SECOND { self.count } else { 0 };
            (self.since, self.count) = (now, 0);
        }
        self.count += 1;
        (TRACES_PER_SECOND / self.before.max(self.count) as f64).min(1.0)
    }
}

impl Sampling {
    fn of(settings: &Settings, variable: impl Fn(&str) -> Option<String>) -> Result<Self, TraceError> {
        if let Some(ratio) = settings.sample_ratio {
            return Ok(Self { by_parent: true, root: Sampler::TraceIdRatioBased(ratio), thinning: None });
        }
        let Some(name) = variable("OTEL_TRACES_SAMPLER") else {
            let thinning = Some(Mutex::new(Thinning::new(Instant::now())));
            return Ok(Self { by_parent: true, root: Sampler::AlwaysOn, thinning });
        };
        let (by_parent, root) = match name.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, name.as_str()),
        };
        let root = match root {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(ratio(&variable)?),
            _ => {
                let right = "always_on, always_off or traceidratio, also with parentbased_ before it";
                return Err(TraceError::Variable { variable: "OTEL_TRACES_SAMPLER", value: name, right });
            }
        };
        Ok(Self { by_parent, root, thinning: None })
    }

    fn samples(&self, trace: TraceId, parent: Option<bool>) -> bool {
        if let Some(sampled) = parent.filter(|_| self.by_parent) {
            return sampled;
        }
        match &self.thinning {
            None => is_among(&self.root, trace),
            Some(thinning) => {
                let ratio = thinning.lock().unwrap_or_else(PoisonError::into_inner).ratio(Instant::now());
                is_among(&Sampler::TraceIdRatioBased(ratio), trace)
            }
        }
    }
}

/// Whether a sampler takes a trace.
fn is_among(sampler: &Sampler, trace: TraceId) -> bool {
    let kind = opentelemetry::trace::SpanKind::Consumer;
    sampler.should_sample(None, trace, "", &kind, &[], &[]).decision == SamplingDecision::RecordAndSample
}

fn ratio(variable: impl Fn(&str) -> Option<String>) -> Result<f64, TraceError> {
    const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(value) = variable(NAME) else { return Ok(1.0) };
    let ratio = value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or(TraceError::Variable { variable: NAME, value, right: "a number from 0 to 1" })
}

#[derive(Debug)]
struct Otlp {
    exporter: opentelemetry_otlp::SpanExporter,
    sampling: Sampling,
    scope: InstrumentationScope,
}

impl SpanExporter for Otlp {
    fn samples(&self, trace: TraceId, parent: Option<bool>) -> bool {
        self.sampling.samples(trace, parent)
    }

    fn export(self: Arc<Self>, spans: Vec<Span>) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            let spans = spans.into_iter().map(|span| data(span, &self.scope)).collect();
            self.exporter.export(spans).await.map_err(|error| error.to_string())
        })
    }
}

fn data(span: Span, scope: &InstrumentationScope) -> SpanData {
    let mut links = SpanLinks::default();
    links.links.extend(span.link.map(|context| Link::new(context, Vec::new(), 0)));
    SpanData {
        span_context: SpanContext::new(span.trace, span.id, TraceFlags::SAMPLED, false, span.state),
        parent_span_id: span.parent,
        parent_span_is_remote: span.parent_is_remote,
        span_kind: span.kind,
        name: span.name.into(),
        start_time: span.start,
        end_time: span.end,
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status: span.status,
        instrumentation_scope: scope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment.
    type Variables = &'static [(&'static str, &'static str)];

    fn of(variables: Variables) -> impl Fn(&str) -> Option<String> {
        move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[tokio::test]
    async fn without_an_endpoint_there_are_no_traces() {
        let off = |variables: Variables| exporter_by(&Settings::default(), "n1", of(variables)).unwrap().is_none();
        assert!(off(&[]));
        assert!(off(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"), ("OTEL_SDK_DISABLED", "true")]));
        assert!(off(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"), ("OTEL_TRACES_EXPORTER", "none")]));
        let set = Settings { endpoint: Some("http://localhost:4318/".to_owned()), ..Settings::default() };
        assert!(exporter_by(&set, "n1", of(&[])).unwrap().is_some());
    }

    #[test]
    fn variables_that_mean_nothing_are_refused_and_their_secrets_are_not_shown() {
        for variables in [
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:s3cret@collector:4318")] as Variables,
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://s3cret:1")],
            &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://s3cret host:1")],
            &[("OTEL_EXPORTER_OTLP_HEADERS", "s3cret")],
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")],
            &[("OTEL_SDK_DISABLED", "maybe")],
            &[("OTEL_TRACES_EXPORTER", "zipkin")],
            &[("OTEL_RESOURCE_ATTRIBUTES", "a")],
        ] {
            let set = Settings {
                endpoint: Some("http://localhost:4318".to_owned()).filter(|_| !variables[0].0.ends_with("ENDPOINT")),
                ..Settings::default()
            };
            let Err(refusal) = exporter_by(&set, "n1", of(variables)) else {
                panic!("taken: {variables:?}");
            };
            let said = refusal.to_string();
            assert!(said.starts_with(variables[0].0) && !said.contains("s3cret"), "{said}");
        }
        let sound: Variables = &[
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b, c=d%20e"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,team=a"),
        ];
        let set = Settings { endpoint: Some("http://localhost:4318".to_owned()), ..Settings::default() };
        assert!(exporter_by(&set, "n1", of(sound)).is_ok());
    }

    #[test]
    fn sampling_is_set_by_the_file_or_the_environment() {
        let by = |variables: Variables| Sampling::of(&Settings::default(), of(variables));
        let (low, high) = (TraceId::from_bytes([0x11; 16]), TraceId::from_bytes([0xff; 16]));
        let all = by(&[]).unwrap();
        assert!(all.samples(high, None) && all.samples(high, Some(true)) && !all.samples(high, Some(false)));
        let always = by(&[("OTEL_TRACES_SAMPLER", "always_on")]).unwrap();
        assert!(always.samples(high, Some(false)));
        let half =
            by(&[("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.5")]).unwrap();
        assert_eq!([low, high].map(|id| half.samples(id, None)), [true, false]);
        assert!(half.samples(high, Some(true)));
        let set = Settings { sample_ratio: Some(0.5), ..Settings::default() };
        let set = Sampling::of(&set, of(&[("OTEL_TRACES_SAMPLER", "always_on")])).unwrap();
        assert_eq!([low, high].map(|id| set.samples(id, None)), [true, false], "the file counts");
        for wrong in [
            by(&[("OTEL_TRACES_SAMPLER", "sometimes")]),
            by(&[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")]),
        ] {
            assert!(wrong.unwrap_err().to_string().starts_with("OTEL_TRACES_SAMPLER"));
        }
    }

    #[test]
    fn without_a_setting_all_traces_are_exported_until_there_are_too_many() {
        let start = Instant::now();
        let mut thinning = Thinning::new(start);
        let mut in_second = |second: u64, traces: u64| {
            let now = start + Duration::from_secs(second);
            (0..traces).map(|_| thinning.ratio(now)).sum::<f64>()
        };
        assert!((in_second(0, 900) - 900.0).abs() < 1e-6, "all of few");
        let at_once = in_second(1, 50_000);
        assert!((1_000.0..6_000.0).contains(&at_once), "a burst is thinned out while it lasts: {at_once}");
        let steady = in_second(2, 50_000);
        assert!((steady - 1_000.0).abs() < 1e-3, "{steady}");
        assert!((in_second(9, 100) - 100.0).abs() < 1e-6, "all of few again, after a pause");

        let by = |variables: Variables| Sampling::of(&Settings::default(), of(variables)).unwrap();
        let (none, said) = (by(&[]), by(&[("OTEL_TRACES_SAMPLER", "parentbased_always_on")]));
        let ids =
            || (0..20_000_u64).map(|number| TraceId::from_bytes((u128::from(number) << 49 | 1 << 100).to_be_bytes()));
        assert_eq!(ids().filter(|id| said.samples(*id, None)).count(), 20_000, "as it was said");
        assert_eq!(ids().filter(|id| none.samples(*id, Some(true))).count(), 20_000, "as publishers decided");
        let few = ids().filter(|id| none.samples(*id, None)).count();
        assert!((900..8_000).contains(&few), "{few}");
    }

    #[test]
    fn the_protocol_is_one_that_there_is() {
        let by = |variables: Variables| protocol(&Settings::default(), of(variables));
        assert_eq!(by(&[]).unwrap(), Protocol::Http);
        assert_eq!(by(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap(), Protocol::Grpc);
        let own = &[("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        assert_eq!(by(own).unwrap(), Protocol::Http);
        assert!(by(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).is_err());
    }
}
