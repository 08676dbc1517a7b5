//! Faults on purpose: what operators have the attempts of a type meet, to rehearse failure.
//!
//! The rules alone: which faults may be set, at which moment of an attempt each strikes, and whether it does. Time and
//! chance are arguments; what a fault does to an attempt is done in `actors/src/attempt/faults.rs`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::{JobType, Queue, Timestamp};

/// The longest fault, and the longest delay of one.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

crate::named! {
    /// What goes wrong. Its name stands in requests, metrics and errors.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum FaultKind {
        /// The handler is called later.
        Latency = "latency",
        /// Every attempt fails, and another one may help. Before the other kinds, as it leaves no attempt to them.
        Storm = "storm",
        /// The attempt fails, and another one may help.
        Retryable = "retryable",
        /// The attempt fails for good.
        Permanent = "permanent",
        /// The attempt panics.
        Panic = "panic",
        /// The attempt does nothing until its time limit.
        Hang = "hang",
        /// Nothing is heard of the handler that was called.
        LostHeartbeat = "lost_heartbeat",
        /// The handler succeeds, and its reply is dropped.
        FailAfterWork = "fail_after_work",
        /// The attempt fails as it begins a step.
        FailAtStep = "fail_at_step",
    }
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment<'a> {
    /// Before the handler is called.
    Before,
    /// In place of the handler, or beside it.
    Instead,
    /// As the handler begins a step of this name.
    Step(&'a str),
    /// After the handler has succeeded.
    After,
}

/// A fault that is set: one of each kind for a type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The share of the attempts that it strikes: above 0, at most 1.
    pub probability: f64,
    /// How much later the handler is called: of [`FaultKind::Latency`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The name of the step: of [`FaultKind::FailAtStep`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<SmolStr>,
    /// When it ends.
    pub until: Timestamp,
    /// On each node it ends after it has struck so often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl Fault {
    /// Whether it may be set at `now`.
    ///
    /// # Errors
    /// The field that is wrong, and what is.
    pub fn check(&self, kind: FaultKind, now: Timestamp) -> Result<(), (&'static str, String)> {
        let only = |of: FaultKind| format!("is of the kind {} alone, which needs it", of.as_str());
        let most = u64::try_from(LONGEST.as_millis()).unwrap_or(u64::MAX);
        let wrong = if self.until <= now || self.until.since(now) > LONGEST {
            ("until", "is not within 24 hours from now".to_owned())
        } else if !(self.probability > 0.0 && self.probability <= 1.0) {
            ("probability", "is not above 0 and at most 1".to_owned())
        } else if self.delay_ms.is_some() != (kind == FaultKind::Latency) {
            ("delay_ms", only(FaultKind::Latency))
        } else if self.delay_ms.is_some_and(|delay| !(1..=most).contains(&delay)) {
            ("delay_ms", format!("is not one of 1 to {most}"))
        } else if self.step.is_some() != (kind == FaultKind::FailAtStep) {
            ("step", only(FaultKind::FailAtStep))
        } else if let Some(Err(error)) = self.step.as_ref().map(|step| Queue::parse(step)) {
            ("step", error.reason)
        } else if self.limit == Some(0) {
            ("limit", "is 0".to_owned())
        } else if kind == FaultKind::Storm && (self.limit.is_some() || self.probability < 1.0) {
            ("kind", "a storm strikes all attempts: it has neither probability nor limit".to_owned())
        } else {
            return Ok(());
        };
        Err(wrong)
    }

    /// Whether it is not over at `now`, after it has struck `struck` times on this node.
    pub fn holds(&self, now: Timestamp, struck: u64) -> bool {
        now < self.until && self.limit.is_none_or(|limit| struck < limit)
    }

    /// Whether it may strike at this moment of an attempt.
    pub fn is_for(&self, kind: FaultKind, moment: Moment<'_>) -> bool {
        match kind {
            FaultKind::Latency => moment == Moment::Before,
            FaultKind::FailAfterWork => moment == Moment::After,
            FaultKind::FailAtStep => self.step.as_deref().is_some_and(|step| moment == Moment::Step(step)),
            FaultKind::Retryable
            | FaultKind::Permanent
            | FaultKind::Panic
            | FaultKind::Hang
            | FaultKind::LostHeartbeat
            | FaultKind::Storm => moment == Moment::Instead,
        }
    }

    /// What it does to this type, in words, for people.
    pub fn in_words(&self, job_type: &JobType, kind: FaultKind) -> String {
        let mut words = format!("{job_type} meets {}", kind.as_str());
        words.extend(self.delay_ms.map(|delay| format!(" of {delay} ms")));
        words.extend(self.step.as_ref().map(|step| format!(" {step}")));
        words.extend((self.probability < 1.0).then(|| format!(" with probability {}", self.probability)));
        words.extend([format!(" until {}", self.until)]);
        words.extend(self.limit.map(|limit| format!(", {limit} times a node at most")));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn fault() -> Fault {
        Fault { probability: 1.0, delay_ms: None, step: None, until: at(1_000), limit: None }
    }

    #[test]
    fn each_field_has_its_bounds_and_its_kind() {
        let wrong = |kind, fault: Fault| fault.check(kind, at(0)).err().map(|(field, _)| field);
        for kind in FaultKind::ALL {
            assert_eq!(FaultKind::parse(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            let needs = match kind {
                FaultKind::Latency => Some("delay_ms"),
                FaultKind::FailAtStep => Some("step"),
                _ => None,
            };
            assert_eq!(wrong(kind, fault()), needs);
        }
        let kind = FaultKind::Retryable;
        for until in [0, LONGEST.as_millis() as i64 + 1] {
            assert_eq!(wrong(kind, Fault { until: at(until), ..fault() }), Some("until"));
        }
        for probability in [0.0, 1.01, f64::NAN] {
            assert_eq!(wrong(kind, Fault { probability, ..fault() }), Some("probability"));
        }
        assert_eq!(wrong(kind, Fault { delay_ms: Some(1), ..fault() }), Some("delay_ms"));
        assert_eq!(wrong(FaultKind::Latency, Fault { delay_ms: Some(0), ..fault() }), Some("delay_ms"));
        assert_eq!(wrong(FaultKind::FailAtStep, Fault { step: Some("a b".into()), ..fault() }), Some("step"));
        assert_eq!(wrong(FaultKind::FailAtStep, Fault { step: Some("charge".into()), ..fault() }), None);
        assert_eq!(wrong(kind, Fault { limit: Some(0), ..fault() }), Some("limit"));
        assert_eq!(wrong(FaultKind::Storm, Fault { limit: Some(3), ..fault() }), Some("kind"));
    }

    #[test]
    fn it_ends_at_its_time_or_its_limit_and_strikes_at_its_moment() {
        let limited = Fault { limit: Some(2), ..fault() };
        assert!(limited.holds(at(999), 1) && !limited.holds(at(999), 2) && !limited.holds(at(1_000), 0));
        assert!(fault().is_for(FaultKind::Storm, Moment::Instead) && !fault().is_for(FaultKind::Storm, Moment::After));
        let at_step = Fault { step: Some("charge".into()), ..fault() };
        let is_for = |moment| at_step.is_for(FaultKind::FailAtStep, moment);
        assert!(is_for(Moment::Step("charge")) && !is_for(Moment::Step("ship")) && !is_for(Moment::Instead));
    }

    #[test]
    fn in_words() {
        let mail = JobType::parse("mail").unwrap();
        let fault = Fault { probability: 0.5, delay_ms: Some(20), limit: Some(3), ..fault() };
        let words = fault.in_words(&mail, FaultKind::Latency);
        let until = "1970-01-01T00:00:01.000Z";
        assert_eq!(
            words,
            format!("mail meets latency of 20 ms with probability 0.5 until {until}, 3 times a node at most")
        );
    }
}
