//! The API's OpenAPI document (3.1), from the declarations of the endpoints and the types of requests and answers.
//!
//! What it adds by hand is what only HTTP has: the forms in which jobs are submitted, streams, sessions, pages. It says
//! what this node asks for: without keys there is no scheme of authentication. A test compares its paths and methods
//! with the routes.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use longshore_backbone::wire::api::{self, Declaration, Effect, Endpoint as _, HttpRoute, Method, Scope};
use longshore_backbone::wire::header::names;
use longshore_domain::name::TOKEN_MAX;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::gateway::jobs::NO_PARAMETERS;
use crate::config::{Auth, Http};

type Fields = Map<String, Value>;

pub(super) fn router(http: &Http) -> Router {
    let text = document(http).to_string();
    let answer =
        ([(header::CONTENT_TYPE, "application/json; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")], text);
    Router::new().route("/openapi.json", get(|| async { answer }))
}

pub(super) fn document(http: &Http) -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut of = Document { generator: settings.into_generator(), auth: http.auth, paths: Map::new() };
    for (declaration, request, answer) in api::schemas(&mut of.generator) {
        of.endpoint(declaration, &request.to_value(), &answer.to_value());
    }
    of.jobs();
    of.streams();
    of.sessions();
    of.doctor();
    of.pages(http.metrics_auth);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Longshore",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A job queue on NATS JetStream. Every endpoint is at POST /v1/api/<endpoint>, as on NATS, \
                            and at the routes that HTTP clients expect.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": if http.base_path.is_empty() { "/" } else { http.base_path.as_str() }}],
        "paths": of.paths,
        "components": {
            "schemas": of.generator.take_definitions(true),
            "responses": {"Problem": problem()},
            "headers": {
                "RequestId": {"description": "The client's own, or a new one.", "schema": {"type": "string"}},
                "RateLimit": {"description": "What is left of the tenant's limit, if it has one.", "schema": {"type": "string"}},
                "RateLimit-Policy": {"description": "That limit.", "schema": {"type": "string"}},
            },
        },
    });
    // Only HTTP leaves something out of an answer, and says so.
    for name in ["Record", "DeadLetter", "ScheduleStatus"] {
        let redacted = json!({"type": "boolean", "description": "Its type hides the rest."});
        document["components"]["schemas"][name]["properties"]["redacted"] = redacted;
    }
    if http.auth == Auth::Keys {
        document["components"]["securitySchemes"] = json!({
            "key": {"type": "http", "scheme": "bearer", "description": "A key, `ls_<id>_<secret>`."},
            "session": {"type": "apiKey", "in": "cookie", "name": "longshore_session"},
        });
        document["security"] = json!([{"key": []}, {"session": []}]);
    }
    document
}

struct Document {
    generator: SchemaGenerator,
    auth: Auth,
    paths: Fields,
}

#[derive(Default)]
struct Operation {
    id: String,
    summary: String,
    needs: Option<(&'static [Scope], bool)>,
    parameters: Vec<Value>,
    body: Option<Value>,
    /// The answers of success by their status.
    answers: Vec<(u16, Value)>,
    /// Errors beside those that every operation may have.
    errors: Vec<u16>,
}

impl Operation {
    fn new(id: &str, summary: &str, needs: Option<(&'static [Scope], bool)>) -> Self {
        Self { id: id.to_owned(), summary: summary.to_owned(), needs, ..Self::default() }
    }

    /// Its first answer has a tag, by which a client asks whether it is still the same.
    fn is_conditional(&mut self) {
        self.parameters.push(header("If-None-Match", "The `ETag` of an answer: 304 if it is the same."));
        has_headers(&mut self.answers[0].1, &["ETag"]);
        let mut same = json!({"description": "It is as it was."});
        has_headers(&mut same, &["ETag"]);
        self.answers.push((304, same));
    }
}

impl Document {
    fn endpoint(&mut self, declaration: &'static Declaration, request: &Value, answer: &Value) {
        let schema = self.resolved(request);
        let needs = Some((declaration.scopes(), declaration.for_operators));
        let operation = |id: &str| Operation::new(id, declaration.summary, needs);
        let needed = schema["required"].as_array().is_some_and(|fields| !fields.is_empty());
        // Beside the fields of its request.
        let more = match declaration.effect {
            Effect::Changes => Some(header(names::REASON, "Why, for the audit; written as in an address.")),
            Effect::Reads => Some(query("reveal", &json!({"type": "boolean"}))),
            _ => None,
        };
        self.add(
            Method::Post,
            &format!("/v1/api/{}", declaration.name),
            Operation {
                parameters: [tenant()].into_iter().chain(more.clone()).collect(),
                body: Some(json_body(request, needed)),
                answers: vec![(200, json_answer(answer))],
                errors: if declaration.name == api::Submit::NAME { vec![422] } else { Vec::new() },
                ..operation(&format!("api.{}", declaration.name))
            },
        );
        let routes = declaration.http.iter().filter(|route| !route.1.starts_with("/v1/jobs"));
        for (nth, &HttpRoute(method, path)) in routes.enumerate() {
            let mut rest = Rest::of(&schema, path);
            let mut operation = operation(declaration.name);
            if nth > 0 {
                operation.id = format!("{}.{}", declaration.name, nth + 1);
            }
            operation.parameters = std::mem::take(&mut rest.path);
            match method {
                Method::Get | Method::Delete => operation.parameters.extend(rest.query()),
                Method::Put | Method::Post => {
                    operation.parameters.push(tenant());
                    operation.body = rest.body();
                }
            }
            operation.parameters.extend(more.clone());
            let answer = match (declaration.name, path) {
                // One queue's answer is that queue.
                (api::QueuesList::NAME, "/v1/queues/{queue}") => {
                    json_answer(&self.generator.subschema_for::<api::QueueStatus>().to_value())
                }
                (api::RunsPayload::NAME, _) => {
                    json!({"description": "The payload.", "content": {"*/*": {"schema": {}}}})
                }
                _ => json_answer(answer),
            };
            operation.answers = vec![(200, answer)];
            match method {
                Method::Get if declaration.name != api::RunsPayload::NAME => {
                    operation.is_conditional();
                    has_headers(&mut operation.answers[0].1, &["Link"]);
                }
                Method::Put if declaration.name == api::SchedulesPut::NAME => {
                    has_headers(&mut operation.answers[0].1, &["ETag"]);
                }
                _ => {}
            }
            if declaration.name == api::RunsGet::NAME {
                operation.parameters.push(waits());
            }
            if schema["properties"].get("if_updated_at").is_some() && method != Method::Get {
                operation
                    .parameters
                    .push(header("If-Match", "The `ETag` of the schedule: 412 if it was changed since."));
            }
            self.add(method, path, operation);
        }
    }

    /// The forms in which jobs are submitted.
    fn jobs(&mut self) {
        let one = self.generator.subschema_for::<api::SubmitRequest>().to_value();
        let several = self.generator.subschema_for::<api::BatchRequest>().to_value();
        let taken = self.generator.subschema_for::<api::Submitted>().to_value();
        let answers = self.generator.subschema_for::<api::BatchAnswer>().to_value();
        let record = self.generator.subschema_for::<api::Record>().to_value();
        let of_one = |more: &[&Value]| {
            let any: Vec<&Value> = [&taken, &record].into_iter().chain(more.iter().copied()).collect();
            let mut answers = vec![
                (200, json_answer(&json!({"anyOf": any}))),
                (201, json_answer(&taken)),
                (202, json_answer(&record)),
            ];
            for (status, answer) in &mut answers {
                has_headers(answer, if *status == 201 { &["Location"] } else { &["Location", "Preference-Applied"] });
            }
            answers
        };
        let headers = [
            header("Idempotency-Key", "The field `idempotency_key`."),
            header("Prefer", "`wait=N`, at most 60: the run once it has ended, or after N seconds; `respond-async`."),
        ];
        let needs: Option<(&'static [Scope], bool)> = Some((&[Scope::Submit], false));
        let submits = |id, summary| Operation { errors: vec![422], ..Operation::new(id, summary, needs) };
        let mut by_json = of_one(&[&answers]);
        by_json[0].1["content"]["application/x-ndjson"] = json!({"schema": {"type": "string"}});
        self.add(
            Method::Post,
            "/v1/jobs",
            Operation {
                parameters: headers.iter().cloned().chain([tenant()]).collect(),
                body: Some(json!({"required": true, "content": {
                    "application/json": {"schema": {"anyOf": [&one, several]}},
                    "application/x-ndjson": {"schema": {"type": "string", "description": "A job a line."}},
                }})),
                answers: by_json,
                ..submits("submit", "Takes a job, or several; each is durable once it is answered.")
            },
        );
        let mut fields = Rest::of(&self.resolved(&one), "/v1/jobs");
        fields.fields.retain(|name, _| !NO_PARAMETERS.contains(&name.as_str()));
        fields.needed.clear();
        let name = |summary: &str| json!({"name": "name", "in": "path", "required": true, "description": summary, "schema": {"type": "string"}});
        self.add(
            Method::Post,
            "/v1/jobs/{name}",
            Operation {
                parameters: headers.into_iter().chain([name("The type.")]).chain(fields.query()).collect(),
                body: Some(json!({"content": {"*/*": {"schema": {}}}, "description": "The payload, byte for byte."})),
                answers: of_one(&[]),
                ..submits(
                    "submit.raw",
                    "Takes a job whose payload is the body; `Longshore-Header-<name>` are its own headers.",
                )
            },
        );
        let reads: Option<(&'static [Scope], bool)> = Some((&[Scope::Read], false));
        let mut get = Operation::new("runs.get.2", api::RunsGet::DECLARATION.summary, reads);
        get.parameters = vec![name("The run's id."), waits(), tenant()];
        get.answers = vec![(200, json_answer(&record))];
        get.is_conditional();
        self.add(Method::Get, "/v1/jobs/{name}", get);
    }

    fn streams(&mut self) {
        let words = ["event", "type", "queue", "run_id", "tag"];
        let words = words.map(|name| query(name, &json!({"type": "string", "description": "Words with commas."})));
        let since = query("since", &json!({"type": "string", "format": "date-time"}));
        let run_id = json!({"name": "run_id", "in": "path", "required": true, "schema": {"type": "string"}});
        let last =
            header("Last-Event-ID", "The `id` of the last event that the client has: the stream goes on after it.");
        let frames = json!({"description": "Server-sent events, as they come.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}}});
        let reads: Option<(&'static [Scope], bool)> = Some((&[Scope::Read], false));
        let mut events = Operation::new("events", "Events of a tenant, live.", reads);
        events.parameters = words.into_iter().chain([since, tenant(), last.clone()]).collect();
        events.answers = vec![(200, frames.clone())];
        self.add(Method::Get, "/v1/events", events);
        let mut of_run = Operation::new("runs.stream", "The events of a run until its end.", reads);
        of_run.parameters = vec![run_id, tenant(), last];
        of_run.answers = vec![(200, frames), (204, json!({"description": "The client has had the run's end."}))];
        self.add(Method::Get, "/v1/runs/{run_id}/stream", of_run);
    }

    fn sessions(&mut self) {
        let key = json!({"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"], "additionalProperties": false});
        let whose = json_answer(&json!({"type": "object", "required": ["auth", "tenant", "scopes"]}));
        let ended = json!({"description": "The session is over."});
        let body = (self.auth == Auth::Keys).then(|| json_body(&key, true));
        for (method, id, summary, body, answer) in [
            (Method::Post, "session.begin", "Begins a session with a key.", body, (200, whose.clone())),
            (Method::Get, "session.get", "Who asks, and what the page shows of the installation.", None, (200, whose)),
            (Method::Delete, "session.end", "Ends the session.", None, (204, ended)),
        ] {
            let operation = Operation { body, answers: vec![answer], ..Operation::new(id, summary, None) };
            self.add(method, "/v1/session", operation);
        }
        // A key in the body is what counts.
        self.paths["/v1/session"]["post"]["security"] = json!([]);
    }

    /// What the program that runs the node finds wrong.
    fn doctor(&mut self) {
        let (text, level) = (json!({"type": "string"}), json!({"enum": ["fine", "note", "warning", "failure"]}));
        let finding = json!({"type": "object", "required": ["check", "level", "text"],
            "properties": {"check": &text, "level": &level, "text": &text, "remedy": &text}});
        let found = json!({"type": "object", "required": ["findings", "worst"],
            "properties": {"findings": {"type": "array", "items": finding}, "worst": &level}});
        let summary = "What `longshore doctor` finds with the node's login and settings.";
        let mut operation = Operation::new("doctor", summary, Some((&[Scope::Read], true)));
        operation.answers = vec![(200, json_answer(&found))];
        self.add(Method::Get, "/v1/doctor", operation);
    }

    /// What is there without the API.
    fn pages(&mut self, metrics_auth: bool) {
        let text = |schema: Value| json!({"description": "So it is.", "content": {"text/plain": {"schema": schema}}});
        let (plain, not) = (text(json!({"type": "string"})), "It is not.");
        let json = json_answer(&json!({"type": "object"}));
        for (path, summary, answer, open) in [
            ("/healthz", "Whether the process can work at all.", &plain, true),
            ("/readyz", "Whether the node takes work, and why not.", &json, true),
            ("/metrics", "Metrics in the text format of Prometheus.", &plain, !metrics_auth),
            ("/openapi.json", "This document.", &json, true),
        ] {
            let mut refused = answer.clone();
            refused["description"] = not.into();
            let mut get = json!({"operationId": path[1..], "summary": summary, "tags": ["node"], "responses": {"200": answer, "503": refused}});
            match open {
                true => get["security"] = json!([]),
                false => {
                    for status in ["401", "403"] {
                        get["responses"][status] = json!({"$ref": "#/components/responses/Problem"});
                    }
                }
            }
            self.paths.insert(path.to_owned(), json!({"get": get}));
        }
    }

    fn add(&mut self, method: Method, path: &str, operation: Operation) {
        let Operation { id, summary, needs, parameters, body, answers, errors } = operation;
        let mut responses = Map::new();
        for (status, mut answer) in answers {
            answer["headers"]["X-Request-Id"] = json!({"$ref": "#/components/headers/RequestId"});
            // Only what a tenant asks for.
            for name in
                ["RateLimit", "RateLimit-Policy"].into_iter().filter(|_| needs.is_some() && path != "/v1/doctor")
            {
                answer["headers"][name] = json!({"$ref": format!("#/components/headers/{name}")});
            }
            responses.insert(status.to_string(), answer);
        }
        let keys: &[u16] = if self.auth == Auth::Keys { &[401] } else { &[] };
        let of_body: &[u16] = if body.is_some() { &[408, 415] } else { &[] };
        for status in [&[400, 403, 404, 409, 412, 413, 429, 500, 503], keys, of_body, &errors[..]].concat() {
            responses.insert(status.to_string(), json!({"$ref": "#/components/responses/Problem"}));
        }
        let tag = id.strip_prefix("api.").unwrap_or(&id).split('.').next().unwrap_or_default().to_owned();
        let mut said = json!({"operationId": id, "summary": summary, "tags": [tag], "responses": responses});
        if let Some((scopes, for_operators)) = needs {
            let of_all = if for_operators { " of tenant `_all`" } else { "" };
            let scopes: Vec<_> = scopes.iter().map(|scope| format!("scope `{}`", api::Word::Known(*scope))).collect();
            said["description"] = format!("Needs a key{of_all} with the {}.", scopes.join(" and the ")).into();
        }
        if !parameters.is_empty() {
            said["parameters"] = parameters.into();
        }
        if let Some(body) = body {
            said["requestBody"] = body;
        }
        let path = self.paths.entry(path).or_insert_with(|| json!({}));
        path[method.as_str()] = said;
    }

    /// The schema that a reference names.
    fn resolved(&self, schema: &Value) -> Value {
        let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
        name.and_then(|name| self.generator.definitions().get(name)).unwrap_or(schema).clone()
    }
}

/// The fields of a request at a route: those that stand in its path, and the others.
struct Rest {
    path: Vec<Value>,
    fields: Fields,
    needed: Vec<String>,
}

impl Rest {
    fn of(schema: &Value, path: &str) -> Self {
        let mut fields = schema["properties"].as_object().cloned().unwrap_or_default();
        let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let mut needed: Vec<String> = needed.collect();
        let variables = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let mut in_path = Vec::new();
        for name in variables {
            let schema = fields.remove(name).unwrap_or_else(|| json!({"type": "string"}));
            in_path.push(json!({"name": name, "in": "path", "required": true, "schema": not_null(schema)}));
            needed.retain(|field| field != name);
            if name == "run_id" {
                // Beside a run's id stands no filter; the queue of runs.reschedule is the new one.
                let filter =
                    ["type", "tag", "search", "state", "error_kind", "fingerprint", "since", "until", "all", "limit"];
                let moves = fields.contains_key("run_at");
                fields.retain(|name, _| !filter.contains(&name.as_str()) && (moves || name != "queue"));
                fields.retain(|name, _| !(moves && name == "set"));
            }
        }
        Self { path: in_path, fields, needed }
    }

    /// Its other fields as parameters.
    fn query(self) -> Vec<Value> {
        let Self { mut fields, needed, .. } = self;
        fields.retain(|name, _| !["tenant", "if_updated_at"].contains(&name.as_str()));
        let of = |(name, schema): (String, Value)| {
            let mut parameter = query(&name, &schema);
            parameter["required"] = needed.contains(&name).into();
            parameter
        };
        fields.into_iter().map(of).chain([tenant()]).collect()
    }

    /// Its other fields as a body; `None`: there are none.
    fn body(self) -> Option<Value> {
        let Self { fields, needed, .. } = self;
        if fields.is_empty() {
            return None;
        }
        let is_needed = !needed.is_empty();
        let schema = json!({"type": "object", "properties": fields, "required": needed, "additionalProperties": false});
        Some(json_body(&schema, is_needed))
    }
}

/// The schema of a field that is there.
fn not_null(mut schema: Value) -> Value {
    if let Some(types) = schema["type"].as_array() {
        let types: Vec<&Value> = types.iter().filter(|of| *of != "null").collect();
        schema["type"] = if let [one] = types[..] { one.clone() } else { json!(types) };
    }
    if let Some(Value::Array(any)) = schema.get_mut("anyOf") {
        any.retain(|of| of["type"] != "null");
    }
    if let Value::Object(schema) = &mut schema {
        schema.retain(|name, value| name != "default" || !value.is_null());
    }
    schema
}

/// A parameter of the query. A list has commas.
fn query(name: &str, schema: &Value) -> Value {
    let mut schema = not_null(schema.clone());
    let description = schema.as_object_mut().and_then(|schema| schema.remove("description")).unwrap_or_default();
    let mut parameter = json!({"name": name, "in": "query", "schema": schema});
    if !description.is_null() {
        parameter["description"] = description;
    }
    if parameter["schema"]["type"] == "array" {
        parameter["explode"] = false.into();
    }
    parameter
}

fn tenant() -> Value {
    let schema = json!({"type": "string", "maxLength": TOKEN_MAX, "pattern": "^(_|_all|[A-Za-z0-9-][A-Za-z0-9_-]*)$"});
    json!({"name": "tenant", "in": "query", "description": "The tenant, if not the key's own; `_all` are all.", "schema": schema})
}

fn waits() -> Value {
    let schema = json!({"type": "integer", "minimum": 0, "maximum": 60});
    json!({"name": "wait", "in": "query", "description": "Waits so many seconds for the run's end.", "schema": schema})
}

fn has_headers(answer: &mut Value, names: &[&str]) {
    for name in names {
        answer["headers"][name] = json!({"schema": {"type": "string"}});
    }
}

fn header(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "header", "description": description, "schema": {"type": "string"}})
}

fn json_body(schema: &Value, required: bool) -> Value {
    json!({"required": required, "content": {"application/json": {"schema": schema}}})
}

fn json_answer(schema: &Value) -> Value {
    json!({"description": "The answer.", "content": {"application/json": {"schema": schema}}})
}

/// What went wrong (RFC 9457).
fn problem() -> Value {
    let text = json!({"type": "string"});
    let error =
        json!({"type": "object", "required": ["pointer", "detail"], "properties": {"pointer": &text, "detail": &text}});
    json!({
        "description": "What went wrong.",
        "headers": {
            "X-Request-Id": {"$ref": "#/components/headers/RequestId"},
            "Retry-After": {"description": "Seconds; with 429 and 503.", "schema": {"type": "string"}},
        },
        "content": {"application/problem+json": {"schema": {
            "type": "object",
            "required": ["type", "title", "status", "code", "detail", "request_id"],
            "properties": {
                "type": &text, "title": &text, "status": {"type": "integer"}, "code": &text, "detail": &text, "hint": &text,
                "request_id": &text, "run_id": &text, "trace_id": &text, "retry_after_ms": {"type": "integer"}, "errors": {"type": "array", "items": error},
            },
        }}},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::{Request, header};
    use longshore_backbone::wire::api::ENDPOINTS;
    use tokio_util::sync::CancellationToken;
    use tower_service::Service as _;

    use super::super::gateway::body::Bodies;
    use super::super::tests::at;
    use super::super::{Guard, Listen, router};
    use super::*;

    fn whole() -> Value {
        document(&at(Listen::Off))
    }

    /// The path of a route as the document has it: the forms of jobs share one variable.
    fn shown(path: &str) -> String {
        path.replace("/v1/jobs/{type}", "/v1/jobs/{name}").replace("/v1/jobs/{run_id}", "/v1/jobs/{name}")
    }

    /// Whatever path is asked for by a method that none has, the answer names those that are there.
    #[tokio::test]
    async fn each_path_of_the_document_has_its_methods_and_no_other() {
        let guard = Guard {
            address: "127.0.0.1:8080".parse().unwrap(),
            http: Arc::new(at(Listen::Off)),
            jwt: None,
            node: Arc::default(),
            doctor: Arc::default(),
            ends: CancellationToken::new(),
        };
        let mut router = router(&guard, &Bodies::new(1));
        let whole = whole();
        for (path, methods) in whole["paths"].as_object().unwrap() {
            let uri = path.replace(['{', '}'], "");
            let request = Request::patch(uri).header(header::HOST, "localhost").body(Body::empty()).unwrap();
            let answer = router.call(request).await.unwrap();
            let allowed = answer.headers()[header::ALLOW].to_str().unwrap().to_lowercase();
            let allowed: BTreeSet<&str> =
                allowed.split(',').map(str::trim).filter(|method| *method != "head").collect();
            let said: BTreeSet<&str> = methods.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(allowed, said, "{path}");
        }
    }

    #[test]
    fn each_route_is_in_the_document() {
        let sources = [
            include_str!("gateway/mod.rs"),
            include_str!("openapi.rs").split_once("mod tests").unwrap().0,
            include_str!("doctor.rs"),
            include_str!("pages.rs"),
            include_str!("session.rs"),
            include_str!("streams.rs"),
        ];
        let written = sources.iter().flat_map(|text| text.split(".route(\"").skip(1));
        let written = written.map(|rest| rest.split('"').next().unwrap()).filter(|path| !path.contains("{endpoint}"));
        let declared = ENDPOINTS.iter().flat_map(|endpoint| endpoint.http).map(|route| route.1);
        let whole = whole();
        for path in written.chain(declared).map(shown) {
            assert!(whole["paths"].get(&path).is_some(), "{path}");
        }
        for endpoint in &ENDPOINTS {
            assert!(whole["paths"].get(format!("/v1/api/{}", endpoint.name)).is_some(), "{}", endpoint.name);
        }
    }

    #[test]
    fn each_reference_leads_somewhere_and_no_text_speaks_of_this_programs_types() {
        fn each(value: &Value, check: &mut impl FnMut(&str, &str)) {
            match value {
                Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
                    Value::String(text) => check(name, text),
                    value => each(value, check),
                }),
                Value::Array(items) => items.iter().for_each(|item| each(item, check)),
                _ => {}
            }
        }
        let whole = whole();
        let mut ids = BTreeSet::new();
        each(&whole, &mut |name, text| match name {
            "$ref" => assert!(whole.pointer(text.strip_prefix('#').unwrap()).is_some(), "{text}"),
            "operationId" => assert!(ids.insert(text.to_owned()), "{text} is there twice"),
            _ => assert!(!text.contains("[`") && !text.contains("::"), "{text}"),
        });
    }

    #[test]
    fn answers_have_the_headers_that_are_sent() {
        let whole = whole();
        let has = |path: &str, method: &str, status: &str| {
            let headers = whole["paths"][path][method]["responses"][status]["headers"].as_object();
            let names = headers.map(|headers| headers.keys().filter(|name| !name.starts_with(['R', 'X'])));
            names.into_iter().flatten().cloned().collect::<Vec<_>>().join(" ")
        };
        for path in ["/v1/jobs", "/v1/jobs/{name}"] {
            for (status, names) in [("201", "Location"), ("202", "Location Preference-Applied")] {
                assert_eq!(has(path, "post", status), names, "{path}");
            }
        }
        for status in ["200", "304"] {
            assert_eq!(has("/v1/jobs/{name}", "get", status), "ETag");
        }
        assert_eq!(has("/v1/runs", "get", "200"), "ETag Link");
        assert_eq!(has("/v1/schedules/{id}", "put", "200"), "ETag");
        assert_eq!(has("/v1/runs/{run_id}/payload", "get", "200"), "");
        let answer = &whole["paths"]["/v1/runs"]["get"]["responses"]["200"];
        assert!(answer["headers"]["RateLimit"].is_object() && answer["headers"]["RateLimit-Policy"].is_object());
    }

    #[test]
    fn what_only_http_does_to_answers_is_there() {
        let whole = whole();
        for name in ["Record", "DeadLetter", "ScheduleStatus"] {
            let redacted = &whole["components"]["schemas"][name]["properties"]["redacted"];
            assert_eq!(redacted["type"], "boolean", "{name}");
        }
        for path in ["/v1/jobs", "/v1/api/submit"] {
            assert!(whole["paths"][path]["post"]["responses"]["422"].is_object(), "{path}");
        }
    }

    #[test]
    fn keys_are_asked_for_where_they_are_needed() {
        let document = document(&Http { auth: Auth::Keys, ..at(Listen::Off) });
        let run = &document["paths"]["/v1/runs/{run_id}"]["get"];
        assert!(run["responses"]["401"].is_object() && run["security"].is_null() && document["security"].is_array());
        assert_eq!(document["paths"]["/healthz"]["get"]["security"], json!([]));
        assert!(whole()["security"].is_null());
    }
}
