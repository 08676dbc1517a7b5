//! Watches how full the stream of run records is.

use longshore_backbone::Backbone;
use longshore_domain::DurationText;

use crate::metrics::Metrics;
use crate::runtime::health::Health;

/// Measures how full the stream of run records is; logs when completed records begin to be kept for shorter, and when
/// that is over.
pub(crate) async fn check_records(backbone: &Backbone, metrics: &Metrics, health: &Health, tight: &mut bool) {
    let fill = match backbone.measure_records().await {
        Ok(fill) => fill,
        Err(error) => return tracing::debug!("cannot see how full the records are: {}", error.with_causes()),
    };
    metrics.records_fill.set(fill);
    health.records_full.set(fill >= FULL);
    let kept = backbone.completed_kept();
    let is_tight = kept < backbone.storage().completed_max_age;
    if std::mem::replace(tight, is_tight) != is_tight {
        let percent = (fill * 100.0).round();
        if is_tight {
            tracing::warn!(
                "the stream of run records is {percent} % full: completed ones are kept for {} now; storage.runs_max_records sets it",
                DurationText(kept)
            );
        } else {
            tracing::info!(
                "the stream of run records is {percent} % full: completed ones are kept for as long as is set again"
            );
        }
    }
}

/// From here on the next records may be refused, and with them all work.
const FULL: f64 = 0.98;
