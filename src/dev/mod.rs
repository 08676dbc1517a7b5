//! `longshore dev`: everything on one machine by one command, with a live view of the jobs.
//!
//! Unless the command line names a NATS server, it runs a private one, in a folder of the project's own, and restarts
//! it if it dies. A variable alone does not lead to another cluster, whose jobs the node would take. The node lives in
//! this process, as under `serve`. Ctrl-C, or closing the terminal,
//! drains the node and ends both; a second Ctrl-C ends them at once.
//! [`longshore_natsd`] ends the server with this process, however the process ends.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures_util::{FutureExt as _, StreamExt as _};
use longshore::http;
use longshore::signals::Signals;
use longshore_actors::Node;
use longshore_backbone::wire::api::{OPERATOR, Queues, QueuesList, QueuesRequest};
use longshore_backbone::{Client, Connection};
use longshore_domain::run::whole_millis;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use crate::cli::config::File;
use crate::cli::doctor;
use crate::cli::ended::Ended;
use crate::cli::exact;
use crate::cli::global::Global;
use crate::cli::output::{FAINT, STRONG, number, took};
use crate::cli::serve;
use crate::telemetry;

mod server;

mod tally;
mod view;

use server::PrivateServer;
use tally::Tally;
use view::{Screen, View};

#[derive(Debug, Args)]
pub(crate) struct DevArguments {
    #[command(flatten)]
    file: File,
    /// Keep nothing: jobs and records are lost when the server ends
    #[arg(long, conflicts_with = "dir")]
    ephemeral: bool,
    /// Where the private server keeps its data [default: .longshore in the current folder]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// The private server's port [default: 4222, or a free one if that is taken]
    #[arg(long, value_name = "NUMBER")]
    port: Option<u16>,
}

/// What of the log is shown; beside the live view without the warning of types that lack a handler, which has a place
/// of its own there as long as it lasts.
const LOG: &str = "warn,longshore_natsd=info,longshore::handler=info";
const LIVE_LOG: &str = "warn,longshore_natsd=info,longshore::handler=info,longshore_actors::handlers::discovery=error";

/// Four frames a second are smooth enough for the eye and cost nothing.
const PICTURE_EVERY: Duration = Duration::from_millis(250);

/// How long running jobs have at the end, if no setting says so: a person waits for it.
const GRACE: Duration = Duration::from_secs(5);

/// How often the node is asked how many jobs wait in its queues.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &Global, arguments: DevArguments) -> anyhow::Result<Ended> {
    let screen = Screen::new(std::io::stdout().is_terminal());
    telemetry::beside_a_view(screen.writer(), screen.has_colours(), if screen.live { LIVE_LOG } else { LOG })?;
    let configuration = arguments.file.load(global)?;
    configuration.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let mut signals = Signals::listen().context(serve::UNHEARD)?;
    let http = http::Server::start(configuration.http()).await?;

    let named = global.named_by_hand;
    let (connection, server) = if named {
        (global.nats.connection()?, None)
    } else {
        if global.nats.names_a_server() {
            tracing::warn!(
                "NATS_URL or NATS_CONTEXT is not used: dev keeps to a private server; --server joins that one"
            );
        }
        let start = PrivateServer::start(arguments.ephemeral, arguments.dir, arguments.port);
        let started = tokio::select! {
            started = start => started?,
            _ = signals.next() => return Ok(Ended::Success),
        };
        (Connection::to(started.url()), Some(started))
    };

    let mut settings = configuration.settings().clone();
    settings.traces = longshore::traces::exporter(configuration.telemetry(), &settings.name)?;
    if !configuration.sets("node", "shutdown_grace") {
        settings.shutdown_grace = GRACE;
    }
    let grace = settings.shutdown_grace;
    let (name, namespace) = (settings.name.clone(), settings.storage.namespace.clone());
    let client = Client::connect(&connection, &namespace).await?;
    let started = tokio::select! {
        biased;
        node = Node::begin(settings, connection.clone(), configuration.handlers()) => Some(node),
        _ = signals.next() => None,
    };
    let ended = match started.transpose().context("the node cannot start")? {
        None => Ok(Ended::Success),
        Some(node) if !serve::is_ready(&node, &mut signals).await => serve::drain(node, http, &mut signals).await,
        Some(node) => {
            if let Some(http) = &http {
                http.show(node.observer());
                http.examine_by(doctor::of_node(connection.clone(), &configuration));
            }
            screen.welcome(&welcome(&connection, server.as_ref(), &name, named, http.as_ref()));
            let view = View::new(&screen, &namespace, address(&connection, named));
            let shown = Shown { client: &client, server: server.as_ref(), view, grace, http };
            watch(node, shown, &mut signals).await
        }
    };
    if let Some(server) = server {
        screen.mute();
        tokio::select! {
            stopped = server.stop() => stopped?,
            word = signals.next() => word.end_at_once(),
        }
    }
    ended
}

/// Says what to try next, for a newcomer.
fn welcome(
    connection: &Connection,
    server: Option<&PrivateServer>,
    node: &str,
    named: bool,
    http: Option<&http::Server>,
) -> String {
    let kept = match server.map(PrivateServer::kept) {
        Some(Some(folder)) => format!("data in {}", folder.display()),
        Some(None) => "its data is deleted when it ends".to_owned(),
        None => "not started by dev: it stays when dev ends".to_owned(),
    };
    let address = address(connection, named).map_or_else(String::new, |url| format!("  export NATS_URL={url}\n"));
    let (curl, metrics) = http.map_or_else(Default::default, |http| {
        let address = http.address();
        let scheme = if http.scheme() == "https" { "-k https://" } else { "" };
        let wait = "-H 'Content-Type: application/json' -H 'Prefer: wait=9'";
        let curl = format!("  curl {scheme}{address}/v1/jobs {wait} -d '{{\"type\":\"echo\",\"payload\":1}}'\n");
        (curl, format!("Metrics: {}://{address}/metrics\n", http.scheme()))
    });
    format!(
        "{STRONG}longshore dev{STRONG:#}: node {node}, NATS at {} ({kept})\n\n\
         Try in another terminal:\n{address}  \
         longshore submit echo '{{\"hello\":\"world\"}}' --wait\n  \
         longshore submit fail '{{\"times\":2}}' --wait      {FAINT}fails twice first{FAINT:#}\n  \
         longshore events                              {FAINT}everything that happens{FAINT:#}\n\
         {curl}\
         Handlers in Python, Node.js and Go: examples/render.* in Longshore's repository.\n\
         {metrics}Ctrl-C drains and ends {}.\n",
        connection.shown_url(),
        if server.is_some() { "both" } else { "the node" },
    )
}

/// The server's address, if other commands do not find it by themselves.
fn address(connection: &Connection, named: bool) -> Option<String> {
    let usual = named || connection.url == longshore::config::DEFAULT_URL;
    (!usual).then(|| connection.shown_url())
}

/// What `dev` shows and where.
struct Shown<'a> {
    client: &'a Client,
    server: Option<&'a PrivateServer>,
    view: View<'a>,
    /// How long running jobs have at the end.
    grace: Duration,
    http: Option<http::Server>,
}

/// Shows the events until a signal comes or something fails; then drains the node.
async fn watch(mut node: Node, shown: Shown<'_>, signals: &mut Signals) -> anyhow::Result<Ended> {
    let Shown { client, server, mut view, grace, http } = shown;
    let all = client.names().events_where(None, None, None, None);
    let mut events = std::pin::pin!(client.subscribe(all).await?);
    let mut picture = tokio::time::interval(PICTURE_EVERY);
    picture.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tally = Tally::new(Instant::now());
    let mut queues = std::pin::pin!(ask_queues(client));
    let mut supervised = std::pin::pin!(server::supervise(server));
    loop {
        tokio::select! {
            Some(first) = events.next() => {
                // All that have arrived, so that no frame shows the first half of a burst.
                let mut next = Some(first);
                while let Some(message) = next {
                    let (_, payload) = message?;
                    let Some(event) = read(&payload) else { break };
                    tally.count(&event, Instant::now());
                    view.happened(event);
                    next = events.next().now_or_never().flatten();
                }
            }
            answer = &mut queues => {
                if let Some(answer) = answer {
                    view.queues(&answer);
                }
                view.faults(node.observer().faults());
                queues.set(ask_queues(client));
            }
            _ = picture.tick() => view.draw(&tally, Instant::now()),
            error = node.failed() => return serve::failed(error),
            error = &mut supervised => return Err(error),
            word = signals.next() => {
                view.end(&tally, Instant::now());
                view.screen.say(&format!("{word}: {}; a second one ends at once", left_to_do(&tally, grace)));
                break;
            }
        }
    }
    let mut drained = std::pin::pin!(serve::drain(node, http, signals));
    loop {
        tokio::select! {
            ended = &mut drained => return ended,
            Some(Ok((_, payload))) = events.next() => {
                if let Some(event) = read(&payload) {
                    view.happened(event);
                }
            }
        }
    }
}

/// An event, whatever its handler has sent.
fn read(payload: &[u8]) -> Option<Value> {
    exact::read(std::str::from_utf8(payload).ok()?).ok()
}

/// What the end waits for.
fn left_to_do(tally: &Tally, grace: Duration) -> String {
    let running = tally.running();
    let within = format!("within {} they end or are handed back", took(whole_millis(grace)));
    match running {
        0 => "nothing runs, ending".to_owned(),
        1 => format!("1 job runs, {within}"),
        more => format!("{} jobs run, {within}", number(more)),
    }
}

/// Asks the node by its API how many jobs wait, as any client can.
async fn ask_queues(client: &Client) -> Option<Queues> {
    tokio::time::sleep(ASK_EVERY).await;
    let answer = client.ask::<QueuesList>(OPERATOR, &QueuesRequest::default(), ASK_EVERY).await;
    answer.and_then(|answer| answer.read()).ok()
}
