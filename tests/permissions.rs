//! A node needs no more rights than docs/operations.md grants.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::consumer;
use futures_util::StreamExt as _;
use longshore_harness::{Reply, Scrape, World};
use longshore_natsd::Options;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};

use crate::http::on_a_free_port;
use crate::{is_emptied, use_binary};

/// The subjects of that kind that the document grants a node.
fn granted(kind: &str) -> String {
    const OPERATIONS: &str = include_str!("../docs/operations.md");
    let block = OPERATIONS.split("```text\n").find(|block| block.starts_with("publish:")).unwrap();
    let block = block.split("```").next().unwrap();
    let (publish, subscribe) = block.split_once("subscribe:").unwrap();
    let text = if kind == "publish" { publish } else { subscribe };
    let mut subjects = Vec::new();
    for word in text.split_whitespace().filter(|word| word.contains('.')) {
        match word.strip_suffix("_P1") {
            Some(lanes) => {
                subjects.extend((1..=9).map(|priority| format!("{lanes}_P{priority}")));
                subjects.push(format!("{lanes}_RETURNED"));
            }
            None => subjects.push(word.to_owned()),
        }
    }
    subjects.iter().map(|subject| format!("{subject:?}")).collect::<Vec<_>>().join(", ")
}

/// A world whose server has these users, in the words of its configuration. The world's own is `all`, with the password
/// `p`.
pub(crate) async fn with_users(users: &str) -> World {
    use_binary();
    let extra = format!("authorization {{users: [{users}]}}");
    let options = Options { max_file: longshore_harness::ROOM, extra, ..Options::default() };
    World::with_login(options, ConnectOptions::with_user_and_password("all".into(), "p".into())).await
}

/// Has a remote handler do a job for so long that the node asks whether it is still connected.
async fn a_job_lasts(world: &World) {
    let handler = world.handler("lasting").start(async |_| {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Reply::json(json!(1))
    });
    let _handler = handler.await;
    let run = world.publish("lasting").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a node with exactly the rights that the document grants, when jobs run, fail, are deferred, parked, held up by
/// a circuit breaker, cancelled, replayed, discarded, erased and counted, then the server refuses it nothing.
#[tokio::test]
async fn a_node_needs_no_more_than_the_document_grants() {
    let (publish, subscribe) = (granted("publish"), granted("subscribe"));
    let node = format!("{{publish: [{publish}], subscribe: [{subscribe}]}}");
    let users = format!("{{user: all, password: p}}, {{user: node, password: p, permissions: {node}}}");
    let world = with_users(&users).await;
    let settings = on_a_free_port(world.node())
        .with("types.full", "slots = 1\nbreaker = {}")
        .env("NATS_USER", "node")
        .env("NATS_PASSWORD", "p");
    let node = settings.start().await;

    let handler = world.handler("full").start(async |_| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Reply::json(json!(1))
    });
    let _handler = handler.await;
    a_job_lasts(&world).await;
    let full = world.publish("full").many((0..60).map(|number| json!(number))).await;
    let nobodys = world.publish("nobodys").many((0..20).map(|number| json!(number))).await;
    longshore_harness::eventually("parked jobs", Duration::from_secs(30), async || {
        if world.stored("LONGSHORE_PARKED").await > 0 { Ok(()) } else { Err("none") }
    })
    .await;
    assert!(Scrape::of(&node).await.sum("longshore_queue_jobs", &[("state", "waiting")]) > 0.0);
    let breaker = json!({"tenant": "default", "type": "full"});
    for order in ["breakers.trip", "breakers.reset"] {
        world.try_request("_all", order, breaker.clone()).await.unwrap();
    }
    assert_eq!(world.request("breakers.list", json!({})).await["breakers"][0]["state"], "closed");
    let later = world.submit(json!({"type": "noop", "delay_ms": 600_000, "idempotency_key": "k"})).await;
    let due = world.submit(json!({"type": "noop", "delay_ms": 500})).await;
    let mut dead = Vec::new();
    for _ in 0..2 {
        dead.push(world.publish("fail").json(json!({"kind": "permanent"})).await);
    }
    assert_eq!(world.wait(&due).await.state, "completed");
    world.eventually_dead_letters(2).await;
    assert_eq!(world.request("runs.cancel", json!({"run_id": later})).await["state"], "cancelled");
    for state in ["enqueued", "running", "retrying", "scheduled", "dead", "completed"] {
        world.request("runs.list", json!({"state": state})).await;
    }
    assert!(!world.request("runs.count", json!({})).await["counts"].as_array().unwrap().is_empty());
    world.request("runs.run_now", json!({"type": "nobodys"})).await;
    let cancelled = world.request("runs.cancel", json!({"type": "nobodys"})).await;
    assert_eq!(cancelled["cancelled"], nobodys.len(), "{cancelled}");
    assert_eq!(world.request("dlq.replay", json!({"run_id": dead[0]})).await["replayed"], 1);
    assert_eq!(world.request("dlq.discard", json!({"run_id": dead[1]})).await["discarded"], 1);
    world.request("runs.erase", json!({"run_id": dead[1]})).await;
    for receipt in &full {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }
    is_emptied(&world).await;
    assert!(node.stop().await.success());

    let refused: Vec<String> =
        world.server().log().since(0).into_iter().filter(|line| line.contains("Violation")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Given a tenant's client with exactly the rights that the contract names, when it submits, looks and follows by the
/// command line, which is given its inbox, then the server refuses it nothing; without, it gets no answer.
#[tokio::test]
async fn the_command_line_works_with_the_rights_of_a_tenant() {
    // The last three let it read its own part of the event log, by consumers of any name.
    let rights = "{publish: [\"longshore.jobs.acme.>\", \"longshore.api.acme.>\", \
                  \"$JS.API.CONSUMER.CREATE.LONGSHORE_EVENTS.*.longshore.eventlog.acme\", \
                  \"$JS.API.CONSUMER.MSG.NEXT.LONGSHORE_EVENTS.>\", \"$JS.ACK.LONGSHORE_EVENTS.>\"], \
                  subscribe: [\"longshore.events.acme.>\", \"_INBOX_acme.>\"]}";
    let users = format!("{{user: all, password: p}}, {{user: acme, password: p, permissions: {rights}}}");
    let world = with_users(&users).await;
    let node = world.node().env("NATS_USER", "all").env("NATS_PASSWORD", "p").start().await;
    let ask = async |arguments: &[&str], inbox: &str| {
        let mut command = world.command(arguments.iter().copied());
        command.env("NATS_USER", "acme").env("NATS_PASSWORD", "p").env("LONGSHORE_TENANT", "acme");
        let asked = command.env("NATS_INBOX_PREFIX", inbox).output().await.unwrap();
        (asked.status.code(), String::from_utf8_lossy(&asked.stderr).into_owned())
    };
    for command in [
        &["submit", "echo", "1", "--run-id", "one", "--wait"][..],
        &["runs", "get", "one"],
        &["runs", "wait", "one"],
        &["runs", "list"],
        &["queues"],
        &["dlq", "list"],
        &["events", "--run", "one", "--since", "1h"],
    ] {
        let (code, said) = ask(command, "_INBOX_acme").await;
        assert_eq!(code, Some(0), "{command:?}: {said}");
    }
    let refused = || world.server().log().since(0).into_iter().filter(|line| line.contains("Violation")).count();
    assert_eq!(refused(), 0, "{:#?}", world.server().log().since(0));
    let (code, said) = ask(&["runs", "get", "one"], "").await;
    assert!(code == Some(1) && said.contains("--inbox-prefix"), "{said}");
    crate::logged(world.server().log(), "Violation").await;
    assert!(node.stop().await.success());
}

/// Given a durable consumer of one tenant and a reader of another with the rights that the contract names, when the
/// reader makes its own consumer, then it reads its own events; the other consumer can be neither changed nor read.
#[tokio::test]
async fn a_reader_of_its_event_log_cannot_take_over_another_tenants_consumer() {
    const CONTRACT: &str = include_str!("../docs/contract.md");
    let row = CONTRACT.lines().find(|line| line.starts_with("| reader of its event log")).unwrap();
    let subjects = row.split('`').filter(|word| word.starts_with("$JS.")).map(|word| format!("{word:?}"));
    let rights = subjects.collect::<Vec<_>>().join(", ");
    let acme = format!("{{publish: [{rights}], subscribe: [\"_INBOX_acme.>\"]}}");
    let users = format!("{{user: all, password: p}}, {{user: acme, password: p, permissions: {acme}}}");
    let world = with_users(&users).await;
    let node = world.node().env("NATS_USER", "all").env("NATS_PASSWORD", "p").start().await;
    let run = world.publish("noop").tenant("acme").json(json!(1)).await;
    world.publish("noop").tenant("globex").json(json!(1)).await;
    world.wait_as("acme", &run, Duration::from_secs(60)).await;
    let config = |name: &str, tenant: &str| consumer::pull::Config {
        durable_name: Some(name.to_owned()),
        filter_subject: format!("longshore.eventlog.{tenant}"),
        ..consumer::pull::Config::default()
    };
    let log = world.jetstream().get_stream_no_info("LONGSHORE_EVENTS").await.unwrap();
    log.create_consumer(config("globex", "globex")).await.unwrap();
    let login = ConnectOptions::with_user_and_password("acme".into(), "p".into()).custom_inbox_prefix("_INBOX_acme");
    let mut jetstream = async_nats::jetstream::new(world.connect(login).await);
    jetstream.set_timeout(Duration::from_secs(1));
    let own_log = jetstream.get_stream_no_info("LONGSHORE_EVENTS").await.unwrap();

    let own = own_log.create_consumer(config("acme", "acme")).await.unwrap();
    let taken_over = own_log.create_consumer(config("globex", "acme")).await;

    let mut events = own.messages().await.unwrap();
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(first.subject.as_str(), "longshore.eventlog.acme");
    first.ack().await.unwrap();
    assert!(taken_over.is_err(), "{taken_over:?}");
    let globex = log.consumer_info("globex").await.unwrap();
    assert_eq!(globex.config.filter_subject, "longshore.eventlog.globex");
    assert!(node.stop().await.success());
}

/// Given users who each lack one right of a tenant's client, when they follow events, read the log or ask a node, then
/// the command ends and names the right and the subject.
#[tokio::test]
async fn a_command_that_lacks_a_right_ends_and_names_it() {
    let inbox = "_INBOX.>";
    let user = |name: &str, publish: &str, subscribe: &str| {
        let rights = format!("{{publish: [{publish}], subscribe: [{subscribe}]}}");
        format!("{{user: {name}, password: p, permissions: {rights}}}")
    };
    let log = "\"$JS.API.CONSUMER.CREATE.LONGSHORE_EVENTS.>\"";
    let users = [
        "{user: all, password: p}".to_owned(),
        user("no_events", "\"longshore.api.>\"", &format!("{inbox:?}")),
        user("no_api", "\"longshore.jobs.>\"", &format!("{inbox:?}")),
        user("no_pull", log, &format!("{inbox:?}")),
        user("no_inbox", "\"longshore.api.>\"", "\"longshore.events.>\""),
    ];
    let world = with_users(&users.join(", ")).await;
    let node = world.node().env("NATS_USER", "all").env("NATS_PASSWORD", "p").start().await;
    for (user, command, lacks) in [
        ("no_events", &["events"][..], "subscribe to longshore.events.default.*.*.*.>"),
        ("no_events", &["events", "--run", "one", "--json"], "subscribe to longshore.events.default.*.*.one.>"),
        ("no_api", &["queues"], "publish to longshore.api.default.queues.list"),
        ("no_api", &["submit", "echo", "1"], "publish to longshore.api.default.submit"),
        ("no_api", &["events", "--since", "1h"], "publish to $JS.API.CONSUMER.CREATE.LONGSHORE_EVENTS."),
        ("no_pull", &["events", "--since", "1h", "--follow"], "publish to $JS.API.CONSUMER.MSG.NEXT.LONGSHORE_EVENTS."),
        ("no_inbox", &["queues"], "subscribe to _INBOX."),
    ] {
        let mut asked = world.command(command.iter().copied());
        let ended = asked.env("NATS_USER", user).env("NATS_PASSWORD", "p").kill_on_drop(true).output();
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("{user} {command:?} does not end")).unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        let (right, hint) = (format!("the NATS user lacks the right to {lacks}"), "hint: grant it");
        assert!(ended.status.code() == Some(1) && said.contains(&right) && said.contains(hint), "{user}: {said}");
    }
    node.stop().await;
}

/// Given users who each lack one right that a node needs at its start, when a node starts, then it ends and names it.
#[tokio::test]
async fn a_node_that_lacks_a_right_at_its_start_ends_and_names_it() {
    let user = |name: &str, rights: &str| format!("{{user: {name}, password: p, permissions: {rights}}}");
    let users = [
        "{user: all, password: p}".to_owned(),
        user("no_api", "{publish: {deny: \"$JS.API.INFO\"}}"),
        user("no_stream", "{publish: {deny: \"$JS.API.STREAM.CREATE.>\"}}"),
        user("no_inbox", "{subscribe: {deny: \"_INBOX.>\"}}"),
    ];
    let world = with_users(&users.join(", ")).await;
    for (user, lacks) in [
        ("no_api", "publish to $JS.API.INFO"),
        ("no_stream", "publish to $JS.API.STREAM.CREATE."),
        ("no_inbox", "subscribe to _INBOX."),
    ] {
        let refusal = world.node().env("NATS_USER", user).env("NATS_PASSWORD", "p").try_start().await.unwrap_err();
        let said = format!("cannot use JetStream: the NATS user lacks the right to {lacks}");
        assert!(refusal.log.contains(&said) && refusal.log.contains("hint: grant it"), "{refusal}");
    }
}

/// Given a server with passwords, when its address holds one, then a node and a command use it, and nothing shows it.
#[tokio::test]
async fn a_login_in_the_address_is_used_and_never_shown() {
    let world = with_users("{user: all, password: p}, {user: ann, password: \"s3cr:t@x\"}").await;
    let host = world.urls().replace("nats://", "");
    let url = format!("nats://ann:s3cr%3At%40x@{host}");

    let node = world.node().env("NATS_URL", &url).start().await;
    let run = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    let listed = world.command(["nodes"]).env("NATS_URL", &url).output().await.unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));

    let wrong = format!("nats://ann:n0tthis@{host}");
    let refused = world.command(["nodes"]).env("NATS_URL", &wrong).output().await.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains(&host) && !said.contains("n0tthis"), "{said}");
    let two = format!("{url},nats://bob:n0tthis@{host}");
    let refused = world.command(["nodes"]).env("NATS_URL", &two).output().await.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("two different users") && !said.contains("n0tthis") && !said.contains("s3cr"), "{said}");
    let log = node.log().since(0).join("\n");
    assert!(!log.contains("s3cr"), "{log}");
    node.stop().await;
}

/// Given variables for one server, when the command line names the context of another, then that one is asked, with its
/// own login; and that login is not sent where a variable names the server and the context.
#[tokio::test]
async fn a_context_of_the_command_line_wins_over_variables() {
    let world = with_users("{user: all, password: p}, {user: ann, password: q}").await;
    let node = world.node().env("NATS_USER", "all").env("NATS_PASSWORD", "p").start().await;
    let contexts = world.dir().join("nats/context");
    std::fs::create_dir_all(&contexts).unwrap();
    let context = json!({"url": world.urls(), "user": "ann", "password": "q"});
    std::fs::write(contexts.join("mine.json"), context.to_string()).unwrap();
    let nodes = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = world.command(arguments.iter().copied());
        command.env("XDG_CONFIG_HOME", world.dir()).envs(variables.iter().copied());
        command.output()
    };
    let elsewhere = [("NATS_URL", "nats://127.0.0.1:1"), ("NATS_USER", "bob"), ("NATS_PASSWORD", "n")];
    let said = nodes(&["--context", "mine", "nodes"], &elsewhere).await.unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let other_name = world.urls().replace("127.0.0.1", "localhost");
    let variables = [("NATS_URL", other_name.as_str()), ("NATS_CONTEXT", "mine")];
    let said = nodes(&["nodes"], &variables).await.unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("uthorization"), "the login went to another address: {said}");
    node.stop().await;
}

/// What the command prints.
fn printed(arguments: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(arguments).env_remove("LONGSHORE_TENANT").env_remove("LONGSHORE_CONFIG");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether a server lets that user publish and subscribe to the subject: `ps`, `p`, `s` or nothing.
async fn allowed(address: &str, user: &str, subject: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let login = format!("CONNECT {{\"user\":\"{user}\",\"pass\":\"p\",\"verbose\":false}}\r\n");
    let asked = format!("{login}PUB {subject} 0\r\n\r\nSUB {subject} 1\r\nPING\r\n");
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut said = String::new();
    // Messages that come meanwhile begin with what is asked here, so only whole lines count.
    while !said.lines().any(|line| line == "PONG") {
        let mut some = [0; 4096];
        let count = stream.read(&mut some).await.unwrap();
        assert!(count > 0, "{user}: {said}");
        said.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    let refused = |what: &str| said.contains(&format!("-ERR 'Permissions Violation for {what} to \"{subject}\"'"));
    let letter = |is_refused: bool, letter: &'static str| if is_refused { "" } else { letter };
    format!("{}{}", letter(refused("Publish"), "p"), letter(refused("Subscription"), "s"))
}

/// Given a server whose users have the permissions that `longshore permissions` prints, when each publishes and
/// subscribes to every subject of the document, then it may do what the document says, and nothing else.
#[tokio::test]
async fn each_role_may_do_what_the_document_says() {
    const PAGE: &str = include_str!("../docs/permissions.md");
    let mut rows = PAGE.lines().skip_while(|line| !line.starts_with("| subject |")).map(cells);
    let columns = rows.next().unwrap();
    let mut users = vec!["{user: all, password: p}".to_owned()];
    for role in columns[1..].iter().flat_map(|column| column.split(", ")) {
        let rights = printed(&["--tenant", "acme", "permissions", role]);
        users.push(format!("{{user: {role}, password: p, permissions: {{\n{rights}\n}}}}"));
    }
    assert_eq!(users.len(), 7);
    let world = with_users(&users.join("\n")).await;
    let address = world.urls().replace("nats://", "");
    let mut wrong = Vec::new();
    let rows: Vec<_> = rows.skip(1).take_while(|row| row.len() == columns.len()).collect();
    assert!(rows.len() > 30);
    for row in rows {
        let subject = row[0].trim_matches('`');
        for (column, says) in columns.iter().zip(&row).skip(1) {
            for role in column.split(", ") {
                let may = allowed(&address, role, subject).await;
                if may != *says {
                    wrong.push(format!("{role} {subject}: {may:?}, and the document says {says:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The cells of a row of a table.
fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The files of docker compose are what the command prints, so that nobody has to trust them.
#[test]
fn the_permissions_of_docker_compose_are_printed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/compose");
    for role in ["node", "gateway", "operator", "observer", "producer", "handler"] {
        let file = std::fs::read_to_string(root.join(format!("permissions/{role}.conf"))).unwrap();
        assert_eq!(file, printed(&["permissions", role]), "longshore permissions {role}");
    }
}

/// A user's client of an account of `deploy/accounts.conf`.
async fn client_of(world: &World, user: &str) -> async_nats::Client {
    world.connect(ConnectOptions::with_user_and_password(user.into(), "p".into())).await
}

/// Asks a node as a tenant; `None`: nobody may be asked there.
async fn asked_as(client: &async_nats::Client, subject: &str, body: Value) -> Option<Value> {
    match client.request(subject.to_owned(), body.to_string().into()).await {
        Ok(answer) => Some(serde_json::from_slice(&answer.payload).unwrap()),
        Err(error) => {
            assert_eq!(error.kind(), async_nats::RequestErrorKind::NoResponders, "{subject}: {error}");
            None
        }
    }
}

/// Does each job of a tenant: it says that it has begun, waits for the word to go on, and answers with whose it is.
async fn handler_of(client: &async_nats::Client, tenant: &'static str, go: watch::Receiver<bool>) {
    let (client, subject) = (client.clone(), format!("longshore.work.{tenant}.>"));
    let mut jobs = client.queue_subscribe(subject, "handlers".to_owned()).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(job) = jobs.next().await {
            let (client, mut go, reply) = (client.clone(), go.clone(), job.reply.unwrap());
            tokio::spawn(async move {
                let mut begun = async_nats::HeaderMap::new();
                begun.insert("Longshore-Signal", "progress");
                client.publish_with_headers(reply.clone(), begun, format!("{:?}", "begun").into()).await.unwrap();
                let _ = go.wait_for(|go| *go).await;
                client.publish(reply, format!("{tenant:?}").into()).await.unwrap();
            });
        }
    });
}

/// What the client hears of the subject, in this order.
async fn heard(client: &async_nats::Client, subject: &str) -> mpsc::UnboundedReceiver<String> {
    let (to, heard) = mpsc::unbounded_channel();
    let mut messages = client.subscribe(subject.to_owned()).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let _ = to.send(message.subject.to_string());
        }
    });
    heard
}

/// Given an account for each tenant, as the shipped file has them, when tenants submit jobs, do them with handlers of
/// their own, follow and cancel them, then that works as in one account; and what one does in the other's name, or has
/// answers written to, reaches nobody.
#[tokio::test]
async fn tenants_with_an_account_each_work_and_cannot_touch_one_another() {
    use_binary();
    let file = include_str!("../deploy/accounts.conf");
    let passwords = ["$NODE_PASSWORD", "$ACME_PASSWORD", "$GLOBEX_PASSWORD"];
    let extra = passwords.iter().fold(file.to_owned(), |file, password| file.replace(password, "p"));
    let options = Options { max_file: longshore_harness::ROOM, extra, ..Options::default() };
    let world = World::with_login(options, ConnectOptions::with_user_and_password("node".into(), "p".into())).await;
    let node = world.node().with("node", "reply_prefix = '_'").with("defaults", "announcements = false");
    let node = node.env("NATS_USER", "node").env("NATS_PASSWORD", "p").start().await;
    let (acme, globex) = (client_of(&world, "acme").await, client_of(&world, "globex").await);
    let (go, goes) = watch::channel(false);
    for (client, tenant) in [(&acme, "acme"), (&globex, "globex")] {
        handler_of(client, tenant, goes.clone()).await;
    }
    let mut events = heard(&acme, "longshore.events.acme.>").await;
    let mut cancels = heard(&acme, "longshore.cancel.acme.>").await;
    let mut strange = [heard(&globex, "longshore.events.acme.>").await, heard(&globex, "longshore.work.acme.>").await];

    let job = |run: &str| json!({"type": "render", "run_id": run, "payload": 1});
    for run in ["ends", "stops"] {
        assert_eq!(asked_as(&acme, "longshore.api.acme.submit", job(run)).await.unwrap()["run_id"], run);
    }
    assert_eq!(asked_as(&globex, "longshore.api.globex.submit", job("ends")).await.unwrap()["run_id"], "ends");
    let mut begun = BTreeSet::new();
    while begun.len() < 2 {
        let event = events.recv().await.unwrap();
        if let [_, _, _, "progress", _, run, ..] = event.split('.').collect::<Vec<_>>()[..] {
            begun.insert(run.to_owned());
        }
    }
    // Another's names lead nowhere, and so does an answer that is to be written over another's record.
    for subject in ["longshore.api.acme.runs.get", "longshore.api._all.runs.get", "longshore.api.acme.submit"] {
        assert_eq!(asked_as(&globex, subject, json!({"run_id": "ends"})).await, None, "{subject}");
    }
    for subject in ["longshore.jobs.acme.main.p5.echo", "$KV.longshore_runs.acme.ends", "longshore.dlq.acme.main.echo"]
    {
        assert_eq!(asked_as(&globex, subject, json!({})).await, None, "{subject}");
    }
    let record = "$KV.longshore_runs.acme.ends";
    globex.publish_with_reply("longshore.api.globex.runs.list", record, "{}".into()).await.unwrap();
    globex.publish("longshore.cancel.acme.ends", "".into()).await.unwrap();
    let listed = asked_as(&globex, "longshore.api.globex.runs.list", json!({})).await.unwrap();
    // One that changes meanwhile may come twice.
    let runs = listed["runs"].as_array().unwrap();
    let is_own = |run: &Value| run["run_id"] == "ends" && run["tenant"] == "globex";
    assert!((1..=2).contains(&runs.len()) && runs.iter().all(is_own), "{listed}");

    let cancelled = asked_as(&acme, "longshore.api.acme.runs.cancel", json!({"run_id": "stops"})).await.unwrap();
    assert_eq!(cancelled["run_id"], "stops", "{cancelled}");
    assert_eq!(cancels.recv().await.unwrap(), "longshore.cancel.acme.stops");
    go.send_replace(true);
    for (tenant, run, state, result) in [
        ("acme", "ends", "completed", json!("acme")),
        ("acme", "stops", "cancelled", json!(null)),
        ("globex", "ends", "completed", json!("globex")),
    ] {
        let record = world.wait_as(tenant, run, Duration::from_secs(60)).await;
        assert_eq!((record.state.as_str(), record.result.unwrap_or_default()), (state, result), "{tenant} {run}");
    }
    assert!(strange.iter_mut().all(|heard| heard.try_recv().is_err()), "globex heard of acme");
    let mut command = world.command(["submit", "echo", "1", "--wait"]);
    let command = command.env("NATS_USER", "acme").env("NATS_PASSWORD", "p").env("LONGSHORE_TENANT", "acme");
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(node.stop().await.success());
}
