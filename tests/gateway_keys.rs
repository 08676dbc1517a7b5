//! With keys, the API over HTTP answers who has one that counts, within its tenant and scopes. The client is curl.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longshore_backbone::wire::api::{ENDPOINTS, Effect, Method};
use longshore_harness::{Node, NodeBuilder, World, eventually};
use serde_json::{Value, json};

use crate::gateway::head_and_body;
use crate::{served_by, world};

/// What curl gets: head and body.
fn curl(node: &Node, path: &str, key: Option<&str>, with: &[&str]) -> (u16, String, Value) {
    let bearer = key.map(|key| format!("Authorization: Bearer {key}"));
    let mut arguments = vec!["-H", "Content-Type: application/json"];
    arguments.extend_from_slice(with);
    arguments.extend(bearer.iter().flat_map(|bearer| ["-H", bearer.as_str()]));
    let (head, body) = head_and_body(node, path, &arguments);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, serde_json::from_str(&body).unwrap_or_default())
}

fn builder<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    let node = world.node().name(name).with("faults", "allowed = true");
    node.with("http", "listen = '127.0.0.1:0'\nauth = 'keys'")
}

async fn node(world: &World, name: &str) -> Node {
    builder(world, name).start().await
}

/// What a command such as `longshore keys …` prints, once it has succeeded.
pub(crate) fn keys(world: &World, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.env("NATS_URL", world.urls()).args(arguments).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn key(world: &World, tenant: &str, scopes: &str) -> String {
    keys(world, &["--tenant", tenant, "keys", "create", "test", "--scopes", scopes])
}

fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

fn word(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Post => "POST",
        Method::Delete => "DELETE",
    }
}

/// The scopes that an endpoint needs.
fn needed(effect: Effect) -> &'static str {
    match effect {
        Effect::Submits => "submit",
        Effect::Reads => "read",
        Effect::Changes => "operate",
        Effect::HandsOut => "reveal,submit",
    }
}

/// What keys are tried with.
const SCOPES: [&str; 5] = ["submit", "read", "operate", "reveal", "reveal,submit"];

/// Whether a key with these scopes has all that are needed.
fn suffices(scopes: &str, needed: &str) -> bool {
    needed.split(',').all(|one| scopes.split(',').any(|scope| scope == one))
}

/// Whether a refusal names a scope that the key lacks.
fn names_scope(answer: &Value, needed: &str) -> bool {
    let detail = answer["detail"].as_str().unwrap_or_default();
    needed.split(',').any(|scope| detail.contains(&format!("scope {scope}")))
}

/// Every endpoint is open to a key with its scope, and to no other; the operator's to keys of `_all` alone.
#[tokio::test]
async fn a_key_asks_within_its_scopes_and_tenant() {
    let world = world().await;
    let node = node(&world, "n1").await;
    let of = |tenant| SCOPES.map(|scope| (scope, key(&world, tenant, scope)));

    for (tenant, keys) in [("acme", of("acme")), ("_all", of("_all"))] {
        for endpoint in ENDPOINTS {
            let needed = needed(endpoint.effect);
            for (scope, key) in &keys {
                // Nothing that such a request asks for is there; what is asked for by nothing, reads.
                let body = if endpoint.effect == Effect::Reads { "{}" } else { r#"{"id":"no","run_id":"no"}"# };
                let path = format!("/v1/api/{}", endpoint.name);
                let (status, _, answer) = curl(&node, &path, Some(key), &["-d", body]);
                let may = suffices(scope, needed) && (tenant == "_all" || !endpoint.for_operators);
                assert_eq!(status != 403, may, "{} {tenant} {scope}: {answer}", endpoint.name);
                assert_eq!(
                    names_scope(&answer, needed),
                    !suffices(scope, needed),
                    "{} {scope}: {answer}",
                    endpoint.name
                );
            }
        }
    }
    let acme = key(&world, "acme", "submit,read");
    let used = async || {
        let keys = world.try_request("_all", "keys.list", json!({})).await.unwrap();
        let mut keys = keys["keys"].as_array().unwrap().iter();
        keys.find(|key| key["id"] == id(&acme)).unwrap().get("last_used").cloned()
    };
    assert_eq!(used().await, None);
    let job = r#"{"type":"echo","payload":1}"#;
    let (status, head, taken) = curl(&node, "/v1/jobs", Some(&acme), &["-d", job]);
    assert_eq!(status, 201, "{taken}");
    eventually("the day of its use", Duration::from_secs(30), async || match used().await {
        Some(day) if day.as_str().is_some_and(|day| day.len() == 10) => Ok(()),
        _ => Err("it is not there"),
    })
    .await;
    assert!(head.contains("?tenant=acme"), "the run is of the key's tenant: {head}");
    let run = format!("/v1/runs/{}", taken["run_id"].as_str().unwrap());
    assert_eq!(curl(&node, &format!("{run}?wait=30"), Some(&acme), &[]).2["tenant"], "acme");
    for path in ["/v1/runs?tenant=globex", "/v1/runs?tenant=_all", "/v1/events?tenant=globex"] {
        let (status, _, answer) = curl(&node, path, Some(&acme), &[]);
        assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{path}");
    }
    for (path, body) in [("runs.list", r#"{"tenant":"globex"}"#), ("submit?tenant=globex", job)] {
        assert_eq!(curl(&node, &format!("/v1/api/{path}"), Some(&acme), &["-d", body]).0, 403, "{path}");
    }
    let lines = ["-H", "Content-Type: application/x-ndjson", "-d", job];
    assert_eq!(curl(&node, "/v1/jobs?tenant=globex", Some(&acme), &lines).0, 403);

    let submits = key(&world, "acme", "submit");
    let (status, _, run) = curl(&node, "/v1/jobs", Some(&submits), &["-H", "Prefer: wait=30", "-d", job]);
    assert_eq!((status, &run["state"]), (200, &json!("completed")), "who submits may read the answer");
    assert_eq!(curl(&node, "/v1/runs", Some(&submits), &[]).0, 403);
    assert_eq!(curl(&node, "/v1/events", Some(&submits), &[]).0, 403);
    assert_eq!(curl(&node, "/readyz", None, &[]).0, 200, "probes need no key");
    makes_no_more_than_itself(&world, &node).await;
}

/// A key makes none that would show what it does not show itself, or outlive it.
async fn makes_no_more_than_itself(world: &World, node: &Node) {
    let own = keys(world, &["--tenant", "_all", "keys", "create", "b", "--scopes", "operate", "--expires-in", "1h"]);
    let listed = world.try_request("_all", "keys.list", json!({})).await.unwrap();
    let mut listed = listed["keys"].as_array().unwrap().iter();
    let end = &listed.find(|key| key["id"] == id(&own)).unwrap()["expires_at"];
    let later = json!("9999-01-01T00:00:00Z");
    for (scope, ends, status) in [
        ("submit", end, 200),
        ("read", end, 403),
        ("reveal", end, 403),
        ("submit", &later, 403),
        ("submit", &Value::Null, 403),
    ] {
        let asked = json!({"name": "x", "tenant": "acme", "scopes": [scope], "expires_at": ends}).to_string();
        let (found, _, answer) = curl(node, "/v1/keys", Some(&own), &["-d", &asked]);
        assert_eq!(found, status, "{scope} {ends}: {answer}");
    }
}

/// Streams have no way to reveal. Both runs have ended, and so their streams end by themselves.
fn streams_hide(of: impl Fn(&str) -> String, done: &str, plain: &str, secret: &str) {
    let events = of(done);
    assert!(events.contains("event: completed") && events.contains("event: end"), "{events}");
    assert!(events.contains(r#""redacted":true"#) && !events.contains(secret), "{events}");
    let events = of(plain);
    assert!(events.contains(secret) && !events.contains("redacted"), "{events}");
}

/// Payloads and results of a redacted type are in no answer until a key with the scope `reveal` asks for them, which
/// the audit has; those of other types are.
#[tokio::test]
async fn a_redacted_type_shows_payloads_and_results_only_to_who_may_reveal_them() {
    const SECRET: &str = "4111-1111";
    let world = world().await;
    let node = builder(&world, "n1").with("types.card", &served_by("echo", "redact = true"));
    let node = node.with("types.refused", &served_by("fail", "redact = true\nmax_attempts = 1"));
    let node = node.with("types.pulled", "redact = true").start().await;
    let [submit, read, reveal] = ["submit", "read", "read,reveal"].map(|scopes| key(&world, "acme", scopes));
    let run = |job_type: &str, more: &str| {
        let job = format!(r#"{{"type":"{job_type}","payload":{{"number":"{SECRET}"}}{more}}}"#);
        let (status, _, run) = curl(&node, "/v1/jobs", Some(&submit), &["-H", "Prefer: wait=30", "-d", &job]);
        assert_eq!(run["result"].is_null(), job_type != "echo", "{status} {run}");
        run["run_id"].as_str().unwrap().to_owned()
    };
    let done = run("card", "");
    let dead = run("refused", "");
    let waiting = run("never.served", r#","delay_ms":3600000,"run_id":"plain""#);
    let later = format!(r#"{{"type":"card","every":"1h","payload":"{SECRET}"}}"#);
    let operate = key(&world, "acme", "operate");
    let put = curl(&node, "/v1/schedules/nightly", Some(&operate), &["-X", "PUT", "-d", &later]);
    assert!(put.0 < 300 && !put.2.to_string().contains(SECRET), "{put:?}");
    let plain = run("echo", "");

    let of = |key: &str, path: &str| {
        let (head, body) = head_and_body(&node, path, &["-H", &format!("Authorization: Bearer {key}")]);
        (head.split(' ').nth(1).unwrap().parse::<u16>().unwrap(), body)
    };
    let paths = [
        format!("/v1/runs/{done}"),
        format!("/v1/runs/{done}?wait=1"),
        format!("/v1/jobs/{done}"),
        "/v1/runs?type=card".to_owned(),
        "/v1/dlq".to_owned(),
        format!("/v1/dlq/{dead}"),
        format!("/v1/runs/{dead}/payload"),
        "/v1/schedules".to_owned(),
        "/v1/schedules/nightly".to_owned(),
    ];
    for path in &paths {
        let shown = |body: &str| body.contains(SECRET) || body.contains("payload_base64");
        for key in [&read, &reveal] {
            let (status, body) = of(key, path);
            assert!(!shown(&body), "{path}: {body}");
            assert_eq!(status, if path.ends_with("/payload") { 403 } else { 200 }, "{path}: {body}");
        }
        let with = format!("{path}{}reveal=true", if path.contains('?') { '&' } else { '?' });
        assert_eq!(of(&read, &with).0, 403, "{with}");
        let (status, body) = of(&reveal, &with);
        // A list of runs leaves results out.
        assert!(status == 200 && (shown(&body) || path.starts_with("/v1/runs?")), "{with}: {status} {body}");
    }
    streams_hide(|run| of(&reveal, &format!("/v1/runs/{run}/stream")).1, &done, &plain, SECRET);
    for (path, shows) in [(format!("/v1/runs/{waiting}/payload"), true), (format!("/v1/runs/{plain}"), true)] {
        assert_eq!(of(&read, &path).1.contains(SECRET), shows, "{path}");
    }
    let by = |key: &str| format!("key:{}", id(key));
    let audit = world.try_request("_all", "audit.list", json!({})).await.unwrap().to_string();
    assert!(audit.contains("runs.payload") && audit.contains(&by(&reveal)) && !audit.contains(&by(&read)), "{audit}");
    // Who pulls a job gets it whole.
    world.publish("pulled").tenant("acme").json(json!(SECRET)).await;
    let asked = r#"{"types":["pulled"],"wait_ms":30000}"#;
    let (status, _, job) = curl(&node, "/v1/work", Some(&key(&world, "acme", "reveal,submit")), &["-d", asked]);
    assert_eq!((status, &job["job"]["payload"]), (200, &json!(SECRET)), "{job}");
    let over_nats = world.try_request("acme", "runs.get", json!({"run_id": done})).await.unwrap();
    assert_eq!(over_nats["result"]["number"], SECRET);
}

/// A delivery to a webhook has the event of a redacted type with its result, and is hidden as that is.
#[tokio::test]
async fn deliveries_show_no_results_of_redacted_types() {
    const SECRET: &str = "4111-1111";
    let world = world().await;
    let node = builder(&world, "n1").with("types.card", &served_by("echo", "redact = true"));
    let node = node.with("types.'longshore.webhook'", "backoff = { delays = ['1h'] }");
    let node = node.with("webhooks", "allow = ['127.0.0.1/32']").start().await;
    let [read, reveal] = ["read", "read,reveal"].map(|scopes| key(&world, "acme", scopes));
    // Nobody listens there: each delivery waits for its second attempt.
    let put = json!({"id": "shop", "url": "http://127.0.0.1:1/", "types": ["card"], "events": ["completed"]});
    world.request_as("acme", "webhooks.put", put).await;
    world.publish("card").tenant("acme").json(json!(SECRET)).await;
    let delivery = eventually("a delivery that waits", Duration::from_secs(60), async || {
        let runs = world.request_as("acme", "runs.list", json!({"type": "longshore.webhook"})).await;
        let run = &runs["runs"][0];
        if run["state"] == "retrying" { Ok(run["run_id"].as_str().unwrap().to_owned()) } else { Err(runs) }
    })
    .await;

    let payload = format!("/v1/runs/{delivery}/payload");
    let (status, _, hidden) = curl(&node, &payload, Some(&read), &[]);
    assert_eq!((status, hidden.to_string().contains(SECRET)), (403, false), "{hidden}");
    let (status, _, shown) = curl(&node, &format!("{payload}?reveal=true"), Some(&reveal), &[]);
    assert!(status == 200 && shown.to_string().contains(SECRET), "{status} {shown}");
}

/// Every route is open to a key with the scope of its endpoint, and to no other.
#[tokio::test]
async fn every_route_needs_the_scope_of_its_endpoint() {
    let world = world().await;
    let node = node(&world, "n1").await;
    let keys = SCOPES.map(|scope| (scope, key(&world, "_all", scope)));
    let declared = ENDPOINTS.iter().flat_map(|endpoint| endpoint.http.iter().map(|route| (route, endpoint.effect)));
    let declared = declared.map(|(route, effect)| (word(route.0), route.1, needed(effect)));
    let further = ["/v1/events?since=x", "/v1/runs/no/stream", "/v1/doctor"].map(|path| ("GET", path, "read"));
    for (method, path, needed) in declared.chain(further) {
        let path = path.replace(['{', '}'], "");
        let with = if method == "GET" { vec![] } else { vec!["-X", method, "-d", "{}"] };
        for (scope, key) in &keys {
            let (status, _, answer) = curl(&node, &path, Some(key), &with);
            assert_eq!(status == 403, !suffices(scope, needed), "{method} {path} {scope}: {status} {answer}");
            assert_eq!(names_scope(&answer, needed), !suffices(scope, needed), "{method} {path} {scope}: {answer}");
        }
    }
    let (status, _, answer) = curl(&node, "/v1/doctor", Some(&key(&world, "acme", "read")), &[]);
    assert!(status == 403 && answer["detail"].as_str().unwrap().contains("the operator's"), "{answer}");
}

/// No route lets a tenant's key out of its tenant, however another one is named.
#[tokio::test]
async fn no_route_leads_to_another_tenant() {
    let world = world().await;
    let node = builder(&world, "n1").with("tenants.globex", "rate_limit = { rate = 2, per = '1h' }").start().await;
    let every = key(&world, "acme", "submit,read,operate,reveal");
    let streams = [("GET", "/v1/events"), ("GET", "/v1/runs/no/stream")];
    let declared = ENDPOINTS.iter().flat_map(|endpoint| endpoint.http).map(|route| (word(route.0), route.1));
    let others = ["globex", "_all", "_"];
    for ((method, path), other) in declared.chain(streams).flat_map(|route| others.map(|other| (route, other))) {
        let path = path.replace(['{', '}'], "");
        let with = if method == "GET" { vec![] } else { vec!["-X", method, "-d", "{}"] };
        let (status, head, answer) = curl(&node, &format!("{path}?tenant={other}"), Some(&every), &with);
        assert!(!head.contains("ratelimit"), "what is left of another's limit: {head}");
        assert!(status == 403 || (status == 400 && other == "_"), "{method} {path} {other}: {status} {answer}");
    }
}

/// No key, an unknown, wrong, expired or revoked one: all get the same answer, on every node and after a restart;
/// streams that a revoked key has opened end.
#[tokio::test]
async fn a_key_that_does_not_count_is_refused_everywhere_within_two_seconds() {
    let world = world().await;
    let (one, other) = (node(&world, "n1").await, node(&world, "n2").await);
    let read = key(&world, "acme", "read");
    let brief = keys(&world, &["--tenant", "acme", "keys", "create", "b", "--scopes", "read", "--expires-in", "1s"]);
    for node in [&one, &other] {
        assert_eq!(curl(node, "/v1/runs", Some(&read), &[]).0, 200);
    }
    let mut stream = Command::new("curl");
    stream.args(["-sN", "-m", "60", "-H", &format!("Authorization: Bearer {read}")]).stdout(Stdio::null());
    let mut stream = stream.arg(format!("http://{}/v1/events", other.http())).spawn().unwrap();
    let unknown = read.replace(id(&read), "0123456789abcdef");
    let wrong = format!("{}{}", &read[..read.len() - 1], if read.ends_with('0') { '1' } else { '0' });

    keys(&world, &["keys", "revoke", id(&read)]);
    let revoked_at = Instant::now();
    while curl(&other, "/v1/runs", Some(&read), &[]).0 != 401 {
        assert!(revoked_at.elapsed() < Duration::from_secs(2), "it still counts on another node");
    }
    while curl(&other, "/v1/runs", Some(&brief), &[]).0 != 401 {
        assert!(revoked_at.elapsed() < Duration::from_secs(10), "it expires after a second");
    }
    let refused = |node: &Node, key: Option<&str>| {
        let (status, head, mut answer) = curl(node, "/v1/runs", key, &[]);
        assert!(head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{head}");
        answer.as_object_mut().unwrap().remove("request_id");
        (status, answer)
    };
    let without = refused(&one, None);
    assert_eq!((without.0, &without.1["code"]), (401, &json!("unauthorized")));
    for key in [&read, &brief, &unknown, &wrong, "ls_", "nonsense"] {
        assert_eq!(refused(&one, Some(key)), without, "{key}");
    }
    let ended = tokio::task::spawn_blocking(move || stream.wait().unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap().unwrap();
    assert!(ended.success(), "the stream ends as a stream does: {ended}");
    other.restart().await;
    assert_eq!(refused(&other, Some(&read)), without);
}

/// The audit names the key that asked, and no secret is in it, in lists, in the bucket or in the log.
#[tokio::test]
async fn a_key_is_named_and_its_secret_is_nowhere() {
    let world = world().await;
    let node = node(&world, "n1").await;
    let all = key(&world, "_all", "read,operate");
    let secret = all.rsplit('_').next().unwrap();
    let pause = curl(&node, "/v1/queues/main/pause", Some(&all), &["-X", "POST"]);
    assert_eq!(pause.0, 200, "{}", pause.2);
    let made = curl(&node, "/v1/keys", Some(&all), &["-d", r#"{"name":"x","tenant":"acme","scopes":["read"]}"#]).2;
    assert_eq!(made["id"].as_str().unwrap(), id(made["key"].as_str().unwrap()));
    // Who writes the whole key where its id belongs is refused, and has not published it.
    let misplaced = curl(&node, "/v1/api/keys.revoke", Some(&all), &["-d", &json!({"id": all}).to_string()]);
    assert_eq!((misplaced.0, misplaced.2.to_string().contains(secret)), (400, false), "{}", misplaced.2);

    let audit = curl(&node, "/v1/audit?tenant=_all", Some(&all), &[]).2;
    let entries = audit["entries"].as_array().unwrap();
    let paused = entries.iter().find(|entry| entry["endpoint"] == "queues.pause").unwrap();
    assert_eq!(paused["by"], format!("key:{}", id(&all)));
    assert!(entries.iter().any(|entry| entry["endpoint"] == "keys.create"), "{audit}");
    let listed = curl(&node, "/v1/keys", Some(&all), &[]).2;
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(2), "{listed}");

    let mut stored = Vec::new();
    let bucket = world.jetstream().get_stream("KV_longshore_control").await.unwrap();
    for key in [id(&all), made["id"].as_str().unwrap()] {
        let subject = format!("$KV.longshore_control.api_keys.{key}");
        stored
            .push(String::from_utf8(bucket.get_last_raw_message_by_subject(&subject).await.unwrap().payload.to_vec()));
    }
    let seen = format!("{audit}{listed}{stored:?}{}", node.log().since(0).join("\n"));
    for secret in [secret, made["key"].as_str().unwrap().rsplit('_').next().unwrap()] {
        assert_eq!(secret.len(), 64);
        assert!(!seen.contains(secret), "a secret is in {seen}");
    }
}

/// An API that other machines reach is not open by oversight.
#[tokio::test]
async fn a_node_does_not_start_with_an_open_api_that_others_reach() {
    let world = world().await;
    let refusal = world.node().with("http", "listen = '0.0.0.0:0'").try_start().await.err().unwrap();
    let said = format!("{refusal:?}");
    assert!(said.contains("http.listen: 0.0.0.0:0 is reached by other machines"), "{said}");
    let open = world.node().with("http", "listen = '0.0.0.0:0'\nallow_open = true").start().await;
    let port = open.http().port();
    let url = format!("http://127.0.0.1:{port}/v1/runs");
    let output = Command::new("curl").args(["-sS", "-m", "60", "-w", "%{http_code}", "-o", "/dev/null", &url]).output();
    assert_eq!(output.unwrap().stdout, b"200");
}

/// A browser asks by a session as the holder of its key, on every node, until it logs out or the key ends; no other
/// page can use the session.
#[tokio::test]
async fn a_session_may_what_its_key_may_until_it_ends() {
    let world = world().await;
    let (one, other) = (node(&world, "n1").await, node(&world, "n2").await);
    let own = key(&world, "acme", "submit,read");
    let log_in = |key: &str, with: &[&str]| {
        let body = json!({"key": key}).to_string();
        curl(&one, "/v1/session", None, &[&["-d", body.as_str()], with].concat())
    };
    let cookie = |head: &str| {
        let set = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{head}"));
        assert!(set.contains("Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"), "{set}");
        format!("Cookie: a=b; {}", set.split(';').next().unwrap())
    };

    assert_eq!(log_in(&own.replace(id(&own), "0123456789abcdef"), &[]).0, 401);
    assert_eq!(log_in("nonsense", &[]).0, 401);
    assert_eq!(log_in(&own, &["-H", "Sec-Fetch-Site: cross-site"]).0, 403, "another site logs nobody in");
    let (status, head, whose) = log_in(&own, &["-H", "Sec-Fetch-Site: same-origin"]);
    assert_eq!((status, &whose["tenant"], &whose["auth"]), (200, &json!("acme"), &json!("keys")), "{whose}");
    assert_eq!(whose["scopes"], json!(["submit", "read"]));
    let session = cookie(&head);
    let secret = session.rsplit('_').next().unwrap().to_owned();
    assert!(!own.contains(&secret), "the cookie has not the key");
    let with = |node: &Node, path: &str, more: &[&str]| curl(node, path, None, &[&["-H", &session], more].concat());

    assert_eq!(with(&other, "/v1/session", &[]).2["tenant"], "acme", "every node knows it");
    assert_eq!(with(&other, "/v1/runs", &[]).0, 200);
    assert_eq!(with(&other, "/v1/runs?tenant=globex", &[]).0, 403);
    let job = ["-d", r#"{"type":"echo","payload":1}"#];
    assert_eq!(with(&other, "/v1/jobs", &job).0, 403, "without Sec-Fetch-Site");
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 201), ("none", 201)] {
        let site_of = format!("Sec-Fetch-Site: {site}");
        assert_eq!(with(&other, "/v1/jobs", &[job[0], job[1], "-H", &site_of]).0, status, "{site}");
    }
    // Over plain HTTP a browser sends no Sec-Fetch-Site, but the origin of its page.
    for (origin, status) in [("http://tools.example", 201), ("http://evil.example", 403)] {
        let origin_of = format!("Origin: {origin}");
        let named = [job[0], job[1], "-H", "Host: tools.example", "-H", &origin_of];
        assert_eq!(with(&other, "/v1/jobs", &named).0, status, "{origin}");
    }
    let as_key = session.split('=').next_back().unwrap();
    assert_eq!(log_in(as_key, &[]).0, 401, "a session opens no session");
    let all = key(&world, "_all", "read");
    let listed = curl(&one, "/v1/keys", Some(&all), &[]).2;
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(2), "a session is no key: {listed}");

    let out = ["-X", "DELETE", "-H", "Sec-Fetch-Site: same-origin"];
    let (status, head, _) = with(&one, "/v1/session", &out);
    assert!(status == 204 && head.contains("Max-Age=0"), "{head}");
    assert_eq!(with(&one, "/v1/runs", &[]).0, 401);
    let session = cookie(&log_in(&own, &[]).1);
    assert_eq!(curl(&one, "/v1/runs", None, &["-H", &session]).0, 200);
    keys(&world, &["keys", "revoke", id(&own)]);
    let revoked_at = Instant::now();
    while curl(&other, "/v1/runs", None, &["-H", &session]).0 != 401 {
        assert!(revoked_at.elapsed() < Duration::from_secs(2), "it outlives its key");
    }
    for node in [&one, &other] {
        assert!(!node.log().since(0).concat().contains(&secret));
    }
}
