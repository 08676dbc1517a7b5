//! A handler in Rust passes, and each that is broken on purpose is found.

use super::*;

/// What is broken, and the check that is to find it.
const BROKEN: [(&str, &str); 12] = [
    ("slots", "the service announces every type and its slots"),
    ("echo", "t.echo answers its payload"),
    ("permanent", "t.permanent fails for good"),
    ("retry", "t.retry fails retryably once"),
    ("snooze", "t.snooze is put back once"),
    ("progress", "t.progress sends progress and a line"),
    ("heartbeat", "t.long sends heartbeats as announced"),
    ("step", "t.steps stores its step once"),
    ("lease", "t.steps ends once a step is refused"),
    ("cancel", "t.wait ends when it is cancelled"),
    ("detach", "t.late ends its attempts by calls with their tokens"),
    ("token", "t.late ends its attempts by calls with their tokens"),
];

fn info(broken: &str) -> String {
    let slots = if broken == "slots" { "many" } else { "2" };
    let endpoint =
        |kind| json!({"subject": format!("longshore.work.*.t.{kind}"), "metadata": {"longshore.slots": slots}});
    json!({"metadata": {"longshore.heartbeat": "900ms"}, "endpoints": TYPES.map(endpoint)}).to_string()
}

async fn signal(client: &Client, to: &str, word: &str, body: Value) -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("Longshore-Signal", word);
    client.request_with_headers(to.to_owned(), headers, body.to_string().into()).await.unwrap()
}

/// The reply of a failure, or of a snooze.
fn reply(name: &str, value: &str) -> (HeaderMap, String) {
    let mut headers = HeaderMap::new();
    headers.insert(name, value);
    (headers, String::new())
}

async fn stepped(client: &Client, to: &str, broken: &str, attempt: &str) -> (HeaderMap, String) {
    let found = signal(client, to, "step-get", json!({"name": "charge", "n": 1})).await;
    let found: Value = serde_json::from_slice(&found.payload).unwrap();
    let mut result = found["result"].clone();
    if result.is_null() || broken == "step" {
        result = json!({"n": 1});
        let stored = signal(client, to, "step-put", json!({"name": "charge", "n": 1, "result": result})).await;
        if header(&stored, CODE).is_some() && broken != "lease" {
            return reply(CODE, "500");
        }
    }
    if attempt == "1" { reply(CODE, "503") } else { (HeaderMap::new(), result.to_string()) }
}

/// The process to which the work of `t.late` was handed.
async fn ends_late(client: Client, attempt: String, token: String) {
    let call = async |method: &str, field: &str, value: Value| {
        let body = json!({"run_id": "late", "token": token, field: value}).to_string();
        client.request(format!("longshore.api.default.runs.{method}"), body.into()).await
    };
    if attempt == "1" {
        let _ = call("fail", "error", json!("not yet")).await;
    } else if call("progress", "progress", json!({"percent": 40})).await.is_ok() {
        let _ = call("complete", "result", json!({"late": true})).await;
    }
}

async fn work(client: Client, message: Message, broken: &str, first_snooze: bool) {
    let to = message.reply.clone().unwrap();
    let attempt = header(&message, "Longshore-Attempt").unwrap();
    let kind = message.subject.rsplit('.').next().unwrap();
    let plain = |body: &str| (HeaderMap::new(), body.to_owned());
    let mut stop = client.subscribe("longshore.cancel.*.*").await.unwrap();
    signal(&client, &to, "started", Value::Null).await;
    let (headers, body) = match kind {
        "echo" if broken == "echo" => plain("{}"),
        "echo" => plain(std::str::from_utf8(&message.payload).unwrap()),
        "permanent" => reply(CODE, if broken == "permanent" { "500" } else { "422" }),
        "retry" if attempt == "1" => reply(CODE, if broken == "retry" { "400" } else { "503" }),
        "retry" => plain(attempt),
        "snooze" if first_snooze => reply("Longshore-Snooze", if broken == "snooze" { "soon" } else { "1s" }),
        "progress" if broken != "progress" => {
            signal(&client, &to, "progress", json!({"percent": 40})).await;
            let mut headers = HeaderMap::new();
            headers.insert("Longshore-Signal", "log");
            client.publish_with_headers(to.clone(), headers, "half".into()).await.unwrap();
            plain("")
        }
        "long" => {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(300)).await; // its work
                if broken != "heartbeat" {
                    signal(&client, &to, "heartbeat", Value::Null).await;
                }
            }
            plain("")
        }
        "steps" => stepped(&client, &to, broken, attempt).await,
        "late" => {
            let token =
                if broken == "token" { "another" } else { header(&message, "Longshore-Attempt-Token").unwrap() };
            tokio::spawn(ends_late(client.clone(), attempt.to_owned(), token.to_owned()));
            if broken == "detach" { plain("") } else { reply("Longshore-Detach", "1h") }
        }
        "wait" => {
            stop.next().await;
            if broken == "cancel" { plain("") } else { reply(CODE, "500") }
        }
        _ => plain(""),
    };
    client.publish_with_headers(to, headers, body.into()).await.unwrap();
}

async fn serve(client: Client, broken: &'static str) {
    let mut asked = client.subscribe("$SRV.INFO").await.unwrap();
    let mut jobs = client.subscribe("longshore.work.*.t.*").await.unwrap();
    let mut snoozes = 0;
    loop {
        tokio::select! {
            Some(message) = asked.next() => client.publish(message.reply.unwrap(), info(broken).into()).await.unwrap(),
            Some(message) = jobs.next() => {
                snoozes += usize::from(message.subject.ends_with("snooze"));
                tokio::spawn(work(client.clone(), message, broken, snoozes == 1));
            }
        }
    }
}

/// The names of the checks that fail for the handler.
async fn failures(broken: &'static str) -> Vec<&'static str> {
    let server = longshore_natsd::Server::start(longshore_natsd::Options::default()).await.unwrap();
    let handler = tokio::spawn(serve(async_nats::connect(server.url()).await.unwrap(), broken));
    let node = Node::new(async_nats::connect(server.url()).await.unwrap()).await.unwrap();
    let outcomes = node.checks().await;
    handler.abort();
    outcomes.into_iter().filter(|(_, outcome)| outcome.is_err()).map(|(name, _)| name).collect()
}

/// Given a handler in Rust, when it is sound, then it passes; when one thing is broken, then that check alone fails.
#[tokio::test]
async fn each_broken_handler_is_found() {
    let found = BROKEN.map(|(broken, _)| failures(broken));
    let (sound, found) = tokio::join!(failures("nothing"), futures_util::future::join_all(found));
    assert_eq!(sound, [""; 0]);
    for ((broken, check), found) in BROKEN.into_iter().zip(found) {
        assert_eq!(found, [check], "broken: {broken}");
    }
}
