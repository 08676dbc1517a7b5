//! What the metrics show of breakers: the worst of each type, and not for ever.

use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::breaker::record::Cause;
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::{JobType, Tenant};

use super::*;

fn type_named(name: &str) -> JobType {
    JobType::parse(name).unwrap()
}

/// Breakers of these types.
fn breakers_of(types: impl Iterator<Item = String>) -> Breakers {
    let of_type = || TypePolicy { breaker: Some(BreakerPolicy::default()), ..TypePolicy::default() };
    let types = types.map(|name| (type_named(&name), of_type())).collect();
    Breakers::new(Arc::new(Policies { types, ..Policies::default() }), "n1", Arc::default())
}

/// A tenant's breaker of a type is in this state.
fn is(breakers: &Breakers, (tenant, job_type): (&str, &str), state: Circuit) {
    let of = BreakerKey { tenant: Tenant::parse(tenant).unwrap(), job_type: type_named(job_type), key: None };
    let mut breaker = Breaker::new(of, now());
    (breaker.state, breaker.period) = (state, 1);
    breakers.learned(breaker, 1);
}

fn open() -> Circuit {
    Circuit::Open { until: now().plus(Duration::from_secs(600)), times: 1, cause: Cause::Failures, failures: 5 }
}

fn half_open() -> Circuit {
    Circuit::HalfOpen { times: 1, successes: 0, probes: Vec::new(), failures: 5 }
}

fn shown_as(metrics: &Metrics, label: &str) -> i64 {
    metrics.breaker_state.with_label_values(&[label]).get()
}

#[test]
fn a_type_is_shown_as_its_worst_breaker_and_a_breaker_that_is_gone_as_closed() {
    let (breakers, metrics) = (breakers_of(["call", "mail"].map(str::to_owned).into_iter()), Metrics::default());
    is(&breakers, ("acme", "call"), half_open());
    is(&breakers, ("other", "call"), open());
    is(&breakers, ("acme", "mail"), half_open());
    let mut shown = HashSet::new();
    show_states(&breakers, &metrics, &mut shown);
    assert_eq!((shown_as(&metrics, "call"), shown_as(&metrics, "mail")), (2, 1));

    let none = breakers_of(["call"].map(str::to_owned).into_iter());
    show_states(&none, &metrics, &mut shown);
    assert_eq!((shown_as(&metrics, "call"), shown_as(&metrics, "mail")), (0, 0), "no alert stays for ever");
    assert!(shown.is_empty());
}

#[test]
fn types_beyond_those_with_a_metric_of_their_own_are_shown_together() {
    let names = || (0..MAX_LABELS + 3).map(|nth| format!("t{nth}"));
    let (breakers, metrics) = (breakers_of(names()), Metrics::default());
    names().for_each(|name| is(&breakers, ("acme", &name), open()));
    let mut shown = HashSet::new();
    show_states(&breakers, &metrics, &mut shown);
    assert_eq!(shown.len(), MAX_LABELS + 1, "so that no number of types makes the metrics grow");
    assert_eq!(shown_as(&metrics, OTHER), 2);
    let first = shown.clone();
    show_states(&breakers, &metrics, &mut shown);
    assert_eq!(shown, first, "a type that has a metric of its own keeps it");
}
