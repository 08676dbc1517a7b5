//! The settings of traces: `[telemetry]`.

use crate::config::kind::{Protocol, Text};
use crate::config::own_kinds::Collector;
use crate::config::schema::settings;

settings! {
    /// Traces, sent by OTLP. What is not set here, OpenTelemetry's own variables say, such as
    /// OTEL_EXPORTER_OTLP_ENDPOINT. Without an endpoint there are no traces.
    TELEMETRY: TelemetryEntries, TELEMETRY_TABLE;

    /// The collector, without the path of traces: with http/protobuf usually port 4318, with grpc 4317.
    endpoint: Option<Collector>, example("\"http://localhost:4318\"");
    /// How spans are sent; http/protobuf if nothing says otherwise.
    protocol: Option<Protocol>, example("\"http/protobuf\"");
    /// service.name in traces; longshore if nothing says otherwise.
    service_name: Option<Text>, example("\"longshore\"");
    /// The share of traces that is exported; what a job's publisher has decided for its trace holds. The same on all
    /// nodes of a cluster. If nothing says otherwise all are, up to about 1,000 traces a second and node.
    sample_ratio: Option<f64>, example("0.1"), at_least(|| Some(0.0)), at_most(|| Some(1.0));
}
