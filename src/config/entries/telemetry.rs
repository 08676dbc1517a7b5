//! The settings of traces: `[telemetry]`.

use crate::config::collector::Collector;
use crate::config::kind::{Protocol, Text};
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(super) static TELEMETRY: Table = Table::of(
    "Traces, sent by OTLP. What is not set here, OpenTelemetry's own variables say, such as OTEL_EXPORTER_OTLP_ENDPOINT. \
     Without an endpoint there are no traces.",
    &[One(&ENDPOINT), One(&PROTOCOL), One(&SERVICE_NAME), One(&SAMPLE_RATIO)],
);

pub(crate) static ENDPOINT: Entry<Option<Collector>> = Entry::new(
    "endpoint",
    || None,
    "The collector, without the path of traces: with http/protobuf usually port 4318, with grpc 4317.",
)
.example("\"http://localhost:4318\"");

pub(crate) static PROTOCOL: Entry<Option<Protocol>> =
    Entry::new("protocol", || None, "How spans are sent; http/protobuf if nothing says otherwise.")
        .example("\"http/protobuf\"");

pub(crate) static SERVICE_NAME: Entry<Option<Text>> =
    Entry::new("service_name", || None, "service.name in traces; longshore if nothing says otherwise.")
        .example("\"longshore\"");

pub(crate) static SAMPLE_RATIO: Entry<Option<f64>> = Entry::new(
    "sample_ratio",
    || None,
    "The share of traces that is exported; what a job's publisher has decided for its trace holds. The same on all nodes of \
     a cluster. If nothing says otherwise all are, up to about 1,000 traces a second and node.",
)
.example("0.1")
.at_least(|| Some(0.0))
.at_most(|| Some(1.0));
