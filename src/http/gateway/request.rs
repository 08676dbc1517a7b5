//! A request of the API from what HTTP says: variables of the path, parameters of the query, the body.

use std::collections::BTreeMap;

use axum::http::Uri;
use axum::http::request::Parts;
use bytes::Bytes;
use longshore_backbone::wire::api::{self, ApiError, Declaration, OPERATOR};
use longshore_domain::Tenant;
use percent_encoding::percent_decode_str;
use serde_json::value::{RawValue, to_raw_value};

use super::asker;

/// Fields that are numbers, or true or false, and not text.
const NOT_TEXT: [&str; 20] = [
    "limit",
    "rate_per_s",
    "timeout_ms",
    "all",
    "dry_run",
    "priority",
    "idempotency_window_ms",
    "delay_ms",
    "expires_in_ms",
    "max_attempts",
    "keep_ms",
    "cost",
    "concurrency",
    "aging_ms",
    "rate",
    "per_ms",
    "burst",
    "slots",
    "wait_ms",
    "lease_ms",
];

/// The parameters of a query, each at most once, and the tenant that is meant where none is named.
#[derive(Debug, Clone)]
pub(in crate::http) struct Query {
    parameters: BTreeMap<String, String>,
    unnamed: String,
}

impl Query {
    /// 400 if a parameter comes twice, or is no UTF-8.
    pub(in crate::http) fn read(parts: &Parts) -> Result<Self, ApiError> {
        Self::of(&parts.uri, asker(parts)?.tenant())
    }

    fn of(uri: &Uri, unnamed: &str) -> Result<Self, ApiError> {
        let mut parameters = BTreeMap::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if parameters.insert(name.clone(), value).is_some() {
                return Err(ApiError::malformed(format!("{name}: stands twice in the query")));
            }
        }
        Ok(Self { parameters, unnamed: unnamed.to_owned() })
    }

    pub(in crate::http) fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.keys().map(String::as_str)
    }

    pub(in crate::http) fn take(&mut self, name: &str) -> Option<String> {
        self.parameters.remove(name)
    }

    /// 400 if a parameter is left that nothing has taken.
    pub(in crate::http) fn must_be_empty(&self) -> Result<(), ApiError> {
        match self.names().next() {
            Some(name) => Err(ApiError::malformed(format!("{name}: is no parameter here"))),
            None => Ok(()),
        }
    }

    /// Takes all parameters out but the one that names the tenant.
    pub(super) fn take_all_but_tenant(&mut self) -> impl Iterator<Item = (String, String)> + use<> {
        let tenant = self.parameters.remove_entry("tenant").into_iter().collect();
        std::mem::replace(&mut self.parameters, tenant).into_iter()
    }
}

fn decoded(text: &str) -> Result<String, ApiError> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| ApiError::malformed("the query is not UTF-8"))
}

/// A request of the API, and the tenant that asks.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) tenant: String,
    pub(super) body: Bytes,
}

impl Target {
    /// The request to an endpoint. The tenant is named by the query or the body; if neither does, it is the
    /// asker's own. 400 if a field is said twice, or the body is no JSON object.
    pub(super) fn of(
        declaration: &Declaration,
        mut query: Query,
        path: Vec<(String, String)>,
        body: Bytes,
    ) -> Result<Self, ApiError> {
        let by_query = query.take("tenant");
        if query.parameters.is_empty() && path.is_empty() && !declaration.takes_tenant && !declaration.for_operators {
            // An object goes on as it is.
            if !body.trim_ascii_start().starts_with(b"{") {
                fields_of(&body)?;
            }
            return Ok(Self { tenant: meant(by_query, query.unnamed)?, body });
        }
        let mut fields = fields_of(&body)?;
        for (name, value) in path.into_iter().chain(query.parameters) {
            let value = value_of(&name, &value)?;
            if let Some(said) = fields.get(&name)
                && said.get() != value.get()
            {
                return Err(ApiError::malformed(format!("{name}: is said twice, with different values")));
            }
            fields.insert(name, value);
        }
        let by_body = if declaration.takes_tenant { fields.remove("tenant") } else { None };
        let by_body = by_body.map(|text| serde_json::from_str::<String>(text.get()));
        let by_body = by_body.transpose().map_err(|_| ApiError::malformed("tenant: is not a text"))?;
        if let (Some(query), Some(body)) = (&by_query, &by_body)
            && query != body
        {
            return Err(ApiError::malformed("tenant: is said twice, with different values"));
        }
        let named = by_query.or(by_body);
        // The operator names the tenant in the request; any other asks as the tenant itself.
        let unreadable = named.as_deref() == Some(Tenant::unreadable().as_str());
        let tenant = if declaration.for_operators || unreadable {
            if let Some(named) = named.filter(|_| declaration.takes_tenant) {
                fields.insert("tenant".to_owned(), raw(&named)?);
            }
            OPERATOR.to_owned()
        } else {
            meant(named, query.unnamed)?
        };
        let body = serde_json::to_vec(&fields).map_err(|error| ApiError::malformed(error.to_string()))?;
        Ok(Self { tenant, body: body.into() })
    }
}

/// The tenant that asks, if this one is named.
fn meant(named: Option<String>, unnamed: String) -> Result<String, ApiError> {
    match named {
        None => Ok(unnamed),
        Some(named) if named == OPERATOR => Ok(named),
        Some(named) => match Tenant::parse(&named) {
            Ok(_) => Ok(named),
            Err(error) => Err(ApiError::malformed(format!("tenant: {}", error.reason))),
        },
    }
}

/// The fields of a JSON object, each as its text.
pub(super) fn fields_of(body: &[u8]) -> Result<BTreeMap<String, Box<RawValue>>, ApiError> {
    api::fields(body.trim_ascii())
}

/// The JSON of a field whose text stands in an address.
pub(super) fn value_of(name: &str, text: &str) -> Result<Box<RawValue>, ApiError> {
    let is_json = || serde_json::from_str::<f64>(text).is_ok() || ["true", "false"].contains(&text);
    match NOT_TEXT.contains(&name) && is_json() {
        true => RawValue::from_string(text.to_owned()).map_err(|error| ApiError::malformed(error.to_string())),
        false => raw(text),
    }
}

pub(super) fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, ApiError> {
    to_raw_value(value).map_err(|error| ApiError::malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::api::{Endpoint as _, Health, QueuesPut, RunsGet, RunsList};

    use super::*;

    fn of(declaration: &Declaration, uri: &str, path: &[(&str, &str)], body: &'static str) -> Result<Target, String> {
        let query = Query::of(&uri.parse().unwrap(), "default").map_err(|error| error.message)?;
        let path = path.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Target::of(declaration, query, path, Bytes::from_static(body.as_bytes())).map_err(|error| error.message)
    }

    #[test]
    fn path_query_and_body_make_one_request() {
        let list = of(&RunsList::DECLARATION, "/v1/runs?limit=5&tag=7&type=a%2Eb+c", &[], "").unwrap();
        assert_eq!(
            (list.tenant.as_str(), &list.body[..]),
            ("default", &br#"{"limit":5,"tag":"7","type":"a.b c"}"#[..])
        );
        let get = of(&RunsGet::DECLARATION, "/x?tenant=acme", &[("run_id", "a\"b")], "").unwrap();
        assert_eq!((get.tenant.as_str(), &get.body[..]), ("acme", &br#"{"run_id":"a\"b"}"#[..]));
        let all = of(&RunsList::DECLARATION, "/x?tenant=_all", &[], "").unwrap();
        assert_eq!((all.tenant.as_str(), &all.body[..]), ("_all", &b"{}"[..]));
        let put = of(&QueuesPut::DECLARATION, "/x", &[("queue", "q")], r#"{"concurrency":1.50}"#).unwrap();
        assert_eq!((put.tenant.as_str(), &put.body[..]), ("_all", &br#"{"concurrency":1.50,"queue":"q"}"#[..]));
        let health = of(&Health::DECLARATION, "/x", &[], "{\"node\": \"n\"}").unwrap();
        assert_eq!(&health.body[..], b"{\"node\": \"n\"}", "a body that is complete is passed on as it is");
    }

    #[test]
    fn contradictions_are_refused_and_named() {
        let run = |uri: &str, body| of(&RunsGet::DECLARATION, uri, &[("run_id", "a")], body).unwrap_err();
        assert!(run("/x", r#"{"run_id":"b"}"#).starts_with("run_id: "));
        assert!(run("/x?tenant=a", r#"{"tenant":"b"}"#).starts_with("tenant: "));
        assert!(run("/x?limit=1&limit=2", "").starts_with("limit: stands twice"));
        assert!(run("/x?tenant=a%20b", "").starts_with("tenant: "));
        assert_eq!(run("/x", r#"{"tenant":"a","tenant":"a"}"#), "tenant: stands twice");
        assert!(run("/x", "[]").starts_with("the request is not a JSON object"));
    }
}
