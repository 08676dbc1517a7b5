//! What `[telemetry]` says about traces. Which exporter that makes, `traces` decides.

use super::entries::telemetry::TELEMETRY;
use super::kind::Protocol;
use super::raw::Tree;
use super::section::section;

/// The settings of `[telemetry]`. What is absent the environment says, and then OpenTelemetry's defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The collector: a URL, without the path of traces.
    pub endpoint: Option<String>,
    /// How spans are sent.
    pub protocol: Option<Protocol>,
    /// The name of the service in traces.
    pub service_name: Option<String>,
    /// The share of traces that is exported, 0 to 1, of those whose publisher has not decided it.
    pub sample_ratio: Option<f64>,
}

/// What the tree says.
pub(super) fn of(tree: &Tree) -> Settings {
    let section = section(tree, "telemetry");
    Settings {
        endpoint: section.get(&TELEMETRY.endpoint).map(|collector| collector.0),
        protocol: section.get(&TELEMETRY.protocol),
        service_name: section.get(&TELEMETRY.service_name).map(|text| text.0),
        sample_ratio: section.get(&TELEMETRY.sample_ratio),
    }
}
