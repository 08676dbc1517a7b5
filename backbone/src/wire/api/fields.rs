//! The fields of requests about runs, as they are written on the wire.

use std::collections::BTreeMap;

use longshore_domain::{ErrorKind, JobType, NameError, Queue, RunId, RunState, Tenant, Timestamp};
use schemars::{JsonSchema, Schema};
use serde::de::value::Error as WordError;
use serde::de::{IgnoredAny, IntoDeserializer as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::request::{self, in_words};
use super::{Change, Filter, Selection, Target};

/// The fields of all requests about runs, as they are written on the wire. Each endpoint takes some of them
/// ([`Fields::only`]); its own type says what they mean together.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Fields {
    /// The run; excludes a filter.
    #[schemars(with = "Option<RunId>")]
    pub(super) run_id: Option<String>,
    /// The runs' tenant; under `_all` of all by default.
    #[schemars(with = "Option<Tenant>")]
    pub(super) tenant: Option<String>,
    /// Their queue.
    #[schemars(with = "Option<Queue>")]
    pub(super) queue: Option<String>,
    /// Their type.
    #[serde(rename = "type")]
    #[schemars(with = "Option<JobType>")]
    pub(super) job_type: Option<String>,
    /// A tag of theirs.
    pub(super) tag: Option<String>,
    /// A value of theirs, whole, at a place of the payload that their type declares for search.
    pub(super) search: Option<String>,
    /// The idempotency key of the one run that is meant; excludes a filter.
    pub(super) idempotency_key: Option<String>,
    /// Their state.
    #[schemars(with = "Option<RunState>")]
    pub(super) state: Option<String>,
    /// The kind of their last error.
    #[schemars(with = "Option<ErrorKind>")]
    pub(super) error_kind: Option<String>,
    /// Their group, as `dlq.groups` has it.
    pub(super) fingerprint: Option<String>,
    /// Not before this time.
    #[schemars(with = "Option<Timestamp>")]
    pub(super) since: Option<String>,
    /// Not after this time.
    #[schemars(with = "Option<Timestamp>")]
    pub(super) until: Option<String>,
    /// All of them, where no filter is given.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) all: bool,
    /// At most so many.
    pub(super) limit: Option<u64>,
    /// The page to go on with, as the last one said.
    pub(super) cursor: Option<String>,
    /// At most so many a second.
    pub(super) rate_per_s: Option<f64>,
    /// Only count them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
    /// What is to be changed.
    #[serde(deserialize_with = "request::object")]
    pub(super) set: Option<Change>,
    /// At most how long to wait, in milliseconds.
    pub(super) timeout_ms: Option<u64>,
    /// Fields that no endpoint has.
    #[serde(flatten, skip_serializing)]
    #[schemars(skip)]
    pub(super) unknown: BTreeMap<String, IgnoredAny>,
}

/// Makes a type the request of those fields that it takes: says how it is read from them and written as them. The field
/// after `needs` is never left out. What is read and written in another way gets the schema alone (`of`).
macro_rules! takes {
    (
        $request:ident: $taken:expr $(, needs $needed:literal)?;
        $fields:ident => $read:expr;
        $is:pat => $written:expr
    ) => {
        takes!($request of Fields: $taken $(, needs $needed)?);

        impl TryFrom<Fields> for $request {
            type Error = String;

            fn try_from(fields: Fields) -> Result<Self, String> {
                let $fields = fields.only($taken)?;
                $read
            }
        }

        impl From<$request> for Fields {
            fn from($is: $request) -> Self {
                $written
            }
        }
    };
    ($request:ident of $written:ident: $taken:expr $(, needs $needed:literal)?) => {
        impl schemars::JsonSchema for $request {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($request).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::wire::api::fields::only($written::json_schema(generator), $taken, &[$($needed)?])
            }
        }
    };
}

pub(super) use takes;

/// The schema without the other fields.
pub(super) fn only(mut schema: Schema, fields: &[&str], needed: &[&str]) -> Schema {
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| fields.contains(&name.as_str()));
    }
    schema.remove("description");
    schema.insert("required".to_owned(), needed.into());
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

pub(super) const SELECTION: [&str; 13] = [
    "run_id",
    "tenant",
    "queue",
    "type",
    "tag",
    "search",
    "error_kind",
    "since",
    "until",
    "all",
    "limit",
    "dry_run",
    "state",
];

impl Fields {
    /// Refuses fields that the endpoint would ignore silently.
    pub(super) fn only(self, taken: &[&str]) -> Result<Self, String> {
        let said = [
            ("run_id", self.run_id.is_some()),
            ("tenant", self.tenant.is_some()),
            ("queue", self.queue.is_some()),
            ("type", self.job_type.is_some()),
            ("tag", self.tag.is_some()),
            ("search", self.search.is_some()),
            ("idempotency_key", self.idempotency_key.is_some()),
            ("state", self.state.is_some()),
            ("error_kind", self.error_kind.is_some()),
            ("fingerprint", self.fingerprint.is_some()),
            ("since", self.since.is_some()),
            ("until", self.until.is_some()),
            ("all", self.all),
            ("limit", self.limit.is_some()),
            ("cursor", self.cursor.is_some()),
            ("rate_per_s", self.rate_per_s.is_some()),
            ("dry_run", self.dry_run),
            ("set", self.set.is_some()),
            ("timeout_ms", self.timeout_ms.is_some()),
        ];
        let said = said.iter().filter(|(_, said)| *said).map(|(field, _)| *field);
        let refused = said.chain(self.unknown.keys().map(String::as_str)).find(|field| !taken.contains(field));
        match refused {
            Some(field) => Err(format!("{field}: is not a field of this endpoint; there are {}", taken.join(", "))),
            None => Ok(self),
        }
    }

    pub(super) fn of_run(run_id: &RunId, tenant: Option<&Tenant>) -> Self {
        Self { run_id: Some(run_id.to_string()), ..Self::of_tenant(tenant) }
    }

    /// The fields of a filter, which may be empty.
    pub(super) fn of_filter(filter: Filter, tenant: Option<&Tenant>) -> Self {
        Self {
            queue: filter.queue.map(|queue| queue.to_string()),
            job_type: filter.job_type.map(|job_type| job_type.to_string()),
            tag: filter.tag,
            search: filter.search,
            state: filter.state.map(|state| state.as_str().to_owned()),
            error_kind: filter.error_kind.map(|kind| kind.as_str().to_owned()),
            fingerprint: filter.fingerprint,
            since: filter.since.map(|since| since.to_string()),
            until: filter.until.map(|until| until.to_string()),
            ..Self::of_tenant(tenant)
        }
    }

    fn of_tenant(tenant: Option<&Tenant>) -> Self {
        Self { tenant: tenant.map(Tenant::to_string), ..Self::default() }
    }

    /// The tenant that is named; `_` stands for jobs whose own tenant could not be read.
    pub(super) fn tenant(&self) -> Result<Option<Tenant>, String> {
        let read = |text: &str| match text {
            text if text == Tenant::unreadable().as_str() => Ok(Tenant::unreadable()),
            text => Tenant::parse(text),
        };
        name(self.tenant.as_deref(), read)
    }

    /// The queue, of a request in which it does not choose runs.
    pub(super) fn take_queue(&mut self) -> Result<Option<Queue>, String> {
        name(self.queue.take().as_deref(), Queue::parse)
    }

    pub(super) fn run(&self) -> Result<RunId, String> {
        name(self.run_id.as_deref(), RunId::parse)?.ok_or_else(|| "run_id: is missing".to_owned())
    }

    pub(super) fn filter(&self) -> Result<Filter, String> {
        Ok(Filter {
            queue: name(self.queue.as_deref(), Queue::parse)?,
            job_type: name(self.job_type.as_deref(), JobType::parse)?,
            tag: self.tag.clone(),
            search: self.search.clone(),
            state: word("state", self.state.as_deref())?,
            error_kind: word("error_kind", self.error_kind.as_deref())?,
            fingerprint: self.fingerprint.clone(),
            since: time("since", self.since.as_deref())?,
            until: time("until", self.until.as_deref())?,
        })
    }

    /// One run, or a filter; a request for everything must say `all: true`.
    fn target(&self) -> Result<Target, String> {
        let filter = self.filter()?;
        match (&self.run_id, filter.is_empty()) {
            (Some(_), true) if !self.all => self.run().map(Target::Run),
            (Some(_), _) => Err("run_id: stands beside a filter; one of them is enough".to_owned()),
            (None, true) if !self.all => self.tenant()?.map(Target::Tenant).ok_or_else(|| Target::UNSAID.to_owned()),
            (None, _) => Ok(Target::Runs(filter)),
        }
    }

    pub(super) fn selection(&self) -> Result<Selection, String> {
        Ok(Selection { target: self.target()?, tenant: self.tenant()?, limit: self.limit, dry_run: self.dry_run })
    }
}

/// Reads a name; its own error says which name it is.
fn name<T>(text: Option<&str>, read: impl Fn(&str) -> Result<T, NameError>) -> Result<Option<T>, String> {
    text.map(read).transpose().map_err(|error| error.to_string())
}

/// A word of the contract's lists, such as a state.
fn word<'a, T: Deserialize<'a>>(field: &str, text: Option<&'a str>) -> Result<Option<T>, String> {
    let read = |text: &'a str| T::deserialize(text.into_deserializer());
    text.map(read).transpose().map_err(|error: WordError| format!("{field}: {}", in_words(&error.to_string())))
}

fn time(field: &str, text: Option<&str>) -> Result<Option<Timestamp>, String> {
    text.map(Timestamp::parse).transpose().map_err(|error| format!("{field}: {error}"))
}
