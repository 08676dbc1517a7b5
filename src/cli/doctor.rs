//! `longshore doctor`: looks for faults in the set-up of a cluster, and says what to do about each.
//!
//! It only reads. Rights are those of the user that it runs as: run it with the credentials of a node.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::{OptionFuture, join_all};
use longshore::config::{Configuration, check_namespace};
use longshore::http;
use longshore_backbone::wire::api::{
    ApiError, Endpoint, Health, HealthRequest, NodesList, Nothing, OPERATOR, QueuesList, QueuesRequest,
};
use longshore_backbone::{Client, Connection};
use serde_json::{Value, json};

use super::output::{self, BAD, FAINT, GOOD, PENDING, styled};
use super::{Ended, File, Global, Usage};

mod findings;

use findings::{Facts, Finding, Level, Monitored};

/// How long a node's answer may take.
const WITHIN: Duration = Duration::from_secs(3);

/// How often a node is asked in all: a frozen one is sent its share of the requests, and answers none.
const TRIES: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    file: File,
    /// Where the NATS server answers HTTP (its `http` setting): only there it says how it syncs its files
    #[arg(long, value_name = "ADDRESS", value_parser = super::address)]
    monitor: Option<SocketAddr>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: DoctorArguments) -> anyhow::Result<Ended> {
    let configuration = arguments.file.load(global)?;
    let namespace = &configuration.settings().storage.namespace;
    check_namespace(namespace).map_err(|reason| Usage(format!("the namespace cannot be one: {reason}")))?;
    let monitored = OptionFuture::from(arguments.monitor.map(monitored)).await;
    let findings = look(&global.nats.connection()?, &configuration, arguments.file.is_given(), monitored).await;
    let worst = worst(&findings);
    if arguments.json {
        output::json(&as_json(&findings))?;
    } else {
        output::say(shown(&findings, worst).trim_end())?;
    }
    Ok(match worst {
        Level::Fine | Level::Note => Ended::Success,
        Level::Warning => Ended::Warned,
        Level::Failure => Ended::Failure,
    })
}

/// The doctor of the node that this program runs: it has the node's login and settings, and a connection of its own,
/// as that shows what a connection may do.
pub(crate) fn of_node(connection: Connection, configuration: &Configuration) -> http::Doctor {
    let known = Arc::new((connection, configuration.clone()));
    http::Doctor::new(move || {
        let known = Arc::clone(&known);
        async move { as_json(&look(&known.0, &known.1, true, None).await) }
    })
}

async fn look(
    connection: &Connection,
    configuration: &Configuration,
    has_settings: bool,
    monitored: Option<Result<Monitored, String>>,
) -> Vec<Finding> {
    match Client::connect(connection, &configuration.settings().storage.namespace).await {
        Ok(client) => facts(&client, configuration, has_settings, monitored).await.findings(),
        Err(error) => vec![findings::no_connection(&error.into())],
    }
}

fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Fine)
}

fn as_json(findings: &[Finding]) -> Value {
    json!({"findings": findings, "worst": worst(findings)})
}

async fn facts(
    client: &Client,
    configuration: &Configuration,
    has_settings: bool,
    monitored: Option<Result<Monitored, String>>,
) -> Facts {
    let settings = configuration.settings();
    let account = client.account().await;
    let mut declared = client.declared().await.unwrap_or_default();
    // Without a configuration the defaults name a queue that the cluster need not have.
    if has_settings || declared.is_empty() {
        declared.extend(settings.policies.queues.keys().cloned());
    }
    let rights = client.names().rights_of_a_node(declared.iter());
    let all_queues = QueuesRequest::default();
    let (nodes, queues) = tokio::join!(ask::<NodesList>(client, &Nothing {}), ask::<QueuesList>(client, &all_queues));
    let nodes = nodes.map(|answer| answer.nodes);
    let (queues, no_handler) = queues.map(|answer| (answer.queues, answer.no_handler)).unwrap_or_default();
    let mut facts = Facts {
        server: client.server_facts(),
        user: client.user().await,
        rights,
        streams: match &account {
            Ok(_) => client.streams(&settings.storage, &declared).await,
            Err(error) => Err(error.clone()),
        },
        account,
        replicas: has_settings.then_some(settings.storage.replicas),
        wanted_bytes: 0,
        has_settings,
        clocks: client.clocks_of_nodes().await.unwrap_or_default(),
        monitored,
        healths: Vec::new(),
        unanswered: Vec::new(),
        nodes: nodes.map_err(|error| error.message),
        queues,
        no_handler,
    };
    let missing: BTreeSet<&str> = facts.missing().collect();
    facts.wanted_bytes = client.reserved_by(&settings.storage, &declared, |name| missing.contains(name));
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    let mut names: Vec<Option<String>> = nodes.iter().map(|node| Some(node.node.clone())).collect();
    // One that cannot write that it is there may still say why.
    if facts.nodes.is_ok() && names.is_empty() {
        names.push(None);
    }
    let healths = join_all(names.into_iter().map(|name| async {
        let asked = HealthRequest { node: name.clone() };
        (name, ask::<Health>(client, &asked).await)
    }));
    for (name, health) in healths.await {
        match health {
            Ok(health) => facts.healths.push(health),
            Err(ApiError { code: 504, .. }) => facts.unanswered.extend(name),
            Err(_) => {}
        }
    }
    facts
}

async fn ask<E: Endpoint>(client: &Client, asked: &E::Request) -> Result<E::Answer, ApiError> {
    for _ in 1..TRIES {
        match client.ask::<E>(OPERATOR, asked, WITHIN).await {
            Err(ApiError { code: 504, .. }) => {}
            answer => return answer?.read(),
        }
    }
    client.ask::<E>(OPERATOR, asked, WITHIN).await?.read()
}

/// What the server says of itself by HTTP.
async fn monitored(address: SocketAddr) -> Result<Monitored, String> {
    let page = http::page(address, "/jsz?config=true").await;
    let page = page.map_err(|error| super::ended::text_of(&error.into()))?;
    serde_json::from_str(&page).map_err(|error| format!("what {address} answers is not a NATS server's: {error}"))
}

fn shown(findings: &[Finding], worst: Level) -> String {
    let mut out = String::new();
    for Finding { check, level, text, remedy } in findings {
        let style = match level {
            Level::Fine => GOOD,
            Level::Note => FAINT,
            Level::Warning => PENDING,
            Level::Failure => BAD,
        };
        out += &format!("{}  {check:<11}  {}\n", styled(level.word(), style, 7), output::plain(text));
        if let Some(remedy) = remedy {
            out += &format!("{:22}{} {}\n", "", styled("do:", FAINT, 0), output::plain(remedy));
        }
    }
    let count = |wanted: Level| findings.iter().filter(|finding| finding.level == wanted).count();
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    out + &match worst {
        Level::Fine | Level::Note => "\nNothing is wrong.\n".to_owned(),
        Level::Warning | Level::Failure => format!("\nfailures: {failures}, warnings: {warnings}\n"),
    }
}
