//! Runs that start now or at another time: one, or those that match a filter.

use longshore_domain::{Queue, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

use super::encoded::by_field;
use super::fields::{Fields, SELECTION, takes};
use super::{ApiError, Failed, Record, Selection, Target, request};
use crate::wire::json::OrderedFields;

/// Which runs start at another time, and when and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RescheduleBody", into = "RescheduleBody")]
pub struct RescheduleRequest {
    /// The runs.
    pub selection: Selection,
    /// What is to change.
    pub set: NewStart,
}

/// When and where a run is to start; at least one of these is set.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewStart {
    /// When: as it is by default; a time that is over means now.
    pub run_at: Option<Timestamp>,
    /// 1 to 9: as it is by default.
    pub priority: Option<u64>,
    /// Its queue: as it is by default.
    pub queue: Option<Queue>,
}

/// The fields that say what is to change.
const CHANGES: [&str; 3] = ["run_at", "priority", "set"];

/// The request as it is written: for one run the changes stand beside its id; for a filter, whose `queue` says which
/// runs are meant, they stand in `set`.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct RescheduleBody {
    #[serde(flatten)]
    which: Fields,
    run_at: Option<Timestamp>,
    priority: Option<u64>,
    #[serde(deserialize_with = "request::object")]
    set: Option<NewStart>,
}

/// Reads each part on its own, as serde's buffer for flattened fields does not know which field is wrong.
pub(super) fn read_reschedule(body: &[u8]) -> Result<RescheduleRequest, ApiError> {
    let fields: OrderedFields = request::read(body)?;
    let [changes, which] = fields.sorted([&|name| CHANGES.contains(&name), &|_| true]);
    let body = RescheduleBody { which: request::read(&which)?, ..request::read(&changes)? };
    body.try_into().map_err(ApiError::malformed)
}

takes!(RescheduleRequest of RescheduleBody: &own_fields());

fn own_fields() -> Vec<&'static str> {
    [&SELECTION[..], &CHANGES].concat()
}

impl TryFrom<RescheduleBody> for RescheduleRequest {
    type Error = String;

    fn try_from(RescheduleBody { which: mut fields, run_at, priority, set }: RescheduleBody) -> Result<Self, String> {
        let set = match fields.run_id {
            Some(_) if set.is_some() => return Err("set: is for filters; write its fields beside run_id".to_owned()),
            Some(_) => {
                let queue = fields.take_queue()?;
                NewStart { run_at, priority, queue }
            }
            None if run_at.is_some() || priority.is_some() => {
                return Err("set: is missing; with a filter, run_at and priority stand in it".to_owned());
            }
            None => set.unwrap_or_default(),
        };
        Ok(Self { selection: fields.only(&own_fields())?.selection()?, set })
    }
}

impl From<RescheduleRequest> for RescheduleBody {
    fn from(RescheduleRequest { selection, set }: RescheduleRequest) -> Self {
        let is_one = matches!(selection.target, Target::Run(_));
        let mut fields = Fields::from(selection);
        if !is_one {
            return Self { which: fields, set: Some(set), ..Self::default() };
        }
        fields.queue = set.queue.map(|queue| queue.to_string());
        Self { which: fields, run_at: set.run_at, priority: set.priority, set: None }
    }
}

/// The answer: runs that start at another time.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Rescheduled {
    /// For one run by its id: its record.
    Run(Box<Record>),
    /// For the runs that match a filter.
    Runs(RescheduledRuns),
}

/// The outcome for many runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RescheduledRuns {
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// Whether the call ended before it had checked everything: then repeat it.
    pub more: bool,
    /// How many start at another time, or would.
    pub rescheduled: u64,
}

impl<'de> Deserialize<'de> for Rescheduled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_field(deserializer, "rescheduled", Self::Runs, Self::Run)
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::RunId;

    use super::super::{Endpoint as _, RunsReschedule};
    use super::*;

    #[test]
    fn changes_stand_beside_an_id_and_in_set_with_a_filter() {
        let read = |body: &str| RunsReschedule::read(body.as_bytes());
        let one = read(r#"{"run_id":"r","queue":"bulk","priority":2}"#).unwrap();
        assert_eq!(one.selection.target, Target::Run(RunId::parse("r").unwrap()));
        assert_eq!((one.set.queue.as_ref().map(Queue::as_str), one.set.priority), (Some("bulk"), Some(2)));
        let many = read(r#"{"queue":"main","set":{"queue":"bulk"}}"#).unwrap();
        let Target::Runs(filter) = &many.selection.target else { panic!("a filter") };
        assert_eq!(
            (filter.queue.as_ref(), many.set.queue.as_ref().map(Queue::as_str)),
            (Some(&Queue::main()), Some("bulk"))
        );
        for (body, said) in [
            (r#"{"run_id":"r","set":{"priority":1}}"#, "set: is for filters"),
            (r#"{"queue":"main","priority":1}"#, "set: is missing; with a filter"),
            (r#"{"run_id":"r","type":"t","priority":1}"#, "run_id: stands beside a filter"),
            (r#"{"set":{"priority":1}}"#, "run_id: is missing; or give a filter"),
            (r#"{"run_id":7}"#, "run_id: invalid type: integer `7`, expected a string"),
            (r#"{"all":true,"limit":"x","set":{}}"#, "limit: invalid type: string \"x\""),
            (r#"{"run_id":"r","priority":"x"}"#, "priority: invalid type: string \"x\""),
            (r#"{"run_id":"r","run_id":"q"}"#, "run_id: stands twice"),
            (r#"{"all":true,"set":{"payload":1}}"#, "set.payload: unknown field `payload`"),
            (r#"{"run_at":"2026-01-01T00:00:00Z","run_id":"r","x":1}"#, "x: is not a field of this endpoint"),
        ] {
            let error = read(body).unwrap_err().message;
            assert!(error.starts_with(said), "{body}: {error}");
        }
    }
}
