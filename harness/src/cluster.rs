//! Three nats-servers in one cluster, each with its own store, and the faults that a test can cause in them.
//!
//! Each route between two servers passes through a [`Proxy`], so that a test can cut a server from the others, in both
//! directions or in one, while clients still reach it. Servers keep their ports, their stores and their proxies over
//! kills and restarts. The cluster is asked over NATS, as an operator would ask: who leads what, and whether everything
//! is in step.
//!
//! Forbidden here: any knowledge of Longshore's streams; their names come from the caller.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Request};
use futures_util::StreamExt;
use longshore_natsd::{Error, Options, Server, free_port};
use serde_json::{Value, json};

use crate::connect::{ROOM, chain, connect};
use crate::eventually::eventually;
use crate::proxy::{Direction, Proxy};

/// How many servers there are: the smallest number that can lose one.
pub const SERVERS: usize = 3;

/// How long an election may take, or a server that was away may need to catch up.
const SETTLES_WITHIN: Duration = Duration::from_secs(240);

/// How long one question to the servers may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How many sets of ports may be found taken before the start fails: more than that is not an accident.
const TRIES: usize = 8;

/// User and password of the system's account, which may ask about servers and move the meta leader.
const SYSTEM: &str = "system";

/// Three servers in one cluster. Dropped, all are killed.
#[derive(Debug)]
pub struct ServerCluster {
    servers: Vec<Server>,
    /// `routes[from][to]`: the proxy through which server `from` connects to server `to`.
    routes: Vec<Vec<Option<Proxy>>>,
    client: Client,
    /// Connected in the system's account.
    operator: Client,
}

impl ServerCluster {
    /// Starts three servers with their stores in `dir`, and waits until they have a leader and JetStream is up on each.
    ///
    /// # Panics
    /// If a server does not start or the cluster does not form.
    pub(crate) async fn start(dir: &Path) -> ServerCluster {
        for _ in 0..TRIES {
            match ServerCluster::on_free_ports(dir).await {
                Ok(cluster) => {
                    cluster.ready().await;
                    return cluster;
                }
                Err(Error::PortTaken { .. }) => {}
                Err(error) => panic!("no cluster without servers: {}", chain(&error)),
            }
        }
        panic!("no free ports for a cluster were found in {TRIES} tries");
    }

    /// Fails with [`Error::PortTaken`] if another process took one of the ports first.
    async fn on_free_ports(dir: &Path) -> Result<ServerCluster, Error> {
        let ports = free_ports(2 * SERVERS);
        let (client_ports, route_ports) = ports.split_at(SERVERS);
        let mut routes = Vec::new();
        for from in 0..SERVERS {
            let mut row = Vec::new();
            for (to, port) in route_ports.iter().enumerate() {
                row.push(if from == to { None } else { Some(proxy(*port).await) });
            }
            routes.push(row);
        }
        let starts = (0..SERVERS).map(|number| {
            let dir = dir.join(format!("nats-{number}"));
            let extra = settings(route_ports[number], routes[number].iter().flatten());
            let port = Some(client_ports[number]);
            Server::start(Options { dir: Some(dir), port, max_file: ROOM, extra, ..Options::default() })
        });
        let servers = futures_util::future::join_all(starts).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let urls = join_urls(&servers);
        let login = ConnectOptions::with_user_and_password(SYSTEM.to_owned(), SYSTEM.to_owned());
        let (client, operator) = (connect(&urls, ConnectOptions::new()).await, connect(&urls, login).await);
        Ok(ServerCluster { servers, routes, client, operator })
    }

    /// The addresses of all servers, separated by commas, as `NATS_URL` has them.
    pub fn urls(&self) -> String {
        join_urls(&self.servers)
    }

    /// A server: to kill, freeze, thaw, restart.
    ///
    /// # Panics
    /// If there is no server of that number; numbers start at 0.
    pub fn server(&self, number: usize) -> &Server {
        &self.servers[number]
    }

    /// All servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Cuts two servers from each other: no bytes pass, their connections stay open.
    pub fn cut(&self, one: usize, other: usize) {
        self.cut_one_way(one, other);
        self.cut_one_way(other, one);
    }

    /// Server `to` receives nothing from server `from` any more. The other direction stays open.
    pub fn cut_one_way(&self, from: usize, to: usize) {
        self.route(from, to).cut_direction(Direction::ToTarget);
        self.route(to, from).cut_direction(Direction::FromTarget);
    }

    /// Cuts a server from both others. Clients still reach it.
    pub fn isolate(&self, number: usize) {
        for other in (0..SERVERS).filter(|other| *other != number) {
            self.cut(number, other);
        }
    }

    /// Joins all servers again; the bytes that were sent into a cut arrive now.
    pub fn heal(&self) {
        self.routes.iter().flatten().flatten().for_each(Proxy::heal);
    }

    /// A proxy to a server, for a node (`NATS_URL`) or a client that is to lose that server. Closed when dropped.
    pub async fn proxy(&self, number: usize) -> Proxy {
        proxy(self.servers[number].port()).await
    }

    fn route(&self, from: usize, to: usize) -> &Proxy {
        self.routes[from][to].as_ref().expect("a server has no route to itself")
    }

    /// Waits until the cluster has a leader, and every server is up, reaches the others and runs JetStream.
    ///
    /// # Panics
    /// If that takes longer than 240 s. The functions below panic for the same reason.
    pub async fn ready(&self) {
        eventually("a cluster with a leader and JetStream on each server", SETTLES_WITHIN, async || {
            let answers = self.ask_servers("$SYS.REQ.SERVER.PING.JSZ", json!({})).await;
            let named: Vec<&Value> = answers.iter().map(|answer| &answer["data"]["meta_cluster"]["leader"]).collect();
            let agree = named.len() == SERVERS && named.iter().all(|leader| *leader == named[0]);
            let meta = answers.iter().find(leads).map(|answer| &answer["data"]["meta_cluster"]);
            let complete = |meta: &&Value| meta["replicas"].as_array().is_some_and(|all| all.len() == SERVERS - 1);
            let in_step = meta.filter(complete).is_some_and(has_leader_and_is_in_step);
            if agree && in_step { Ok(()) } else { Err(format!("led by {named:?}; the leader says {meta:?}")) }
        })
        .await;
    }

    /// Waits until every stream has a leader and all its replicas are present and in step, so that any of them answers
    /// with the newest data.
    pub async fn in_step(&self) {
        self.ready().await;
        eventually("every stream's replicas in step", SETTLES_WITHIN, async || {
            let streams = self.streams().await?;
            let behind = streams.iter().filter(|stream| !has_leader_and_is_in_step(&stream["cluster"]));
            let behind: Vec<String> =
                behind.map(|stream| format!("{} {}", stream["config"]["name"], stream["cluster"])).collect();
            if behind.is_empty() { Ok(()) } else { Err(behind.join(", ")) }
        })
        .await;
    }

    /// Which server leads the cluster itself, `None` while none does.
    pub async fn meta_leader(&self) -> Option<usize> {
        let answers = self.ask_servers("$SYS.REQ.SERVER.PING.JSZ", json!({})).await;
        self.number(answers.iter().find(leads)?["server"]["name"].as_str()?)
    }

    /// Which server leads a stream, `None` while none does.
    pub async fn stream_leader(&self, stream: &str) -> Option<usize> {
        let info = self.ask(&format!("STREAM.INFO.{stream}"), json!({})).await.ok()?;
        self.number(info["cluster"]["leader"].as_str()?)
    }

    /// Which server leads a consumer, `None` while none does.
    pub async fn consumer_leader(&self, stream: &str, consumer: &str) -> Option<usize> {
        let info = self.ask(&format!("CONSUMER.INFO.{stream}.{consumer}"), json!({})).await.ok()?;
        self.number(info["cluster"]["leader"].as_str()?)
    }

    /// Makes a stream's leader hand over to another server.
    ///
    /// # Errors
    /// The servers' answer, or that they did not answer. The two functions below fail for the same reasons.
    pub async fn step_down_stream(&self, stream: &str) -> Result<(), String> {
        self.ask(&format!("STREAM.LEADER.STEPDOWN.{stream}"), json!({})).await.map(drop)
    }

    /// Makes a consumer's leader hand over to another server.
    pub async fn step_down_consumer(&self, stream: &str, consumer: &str) -> Result<(), String> {
        self.ask(&format!("CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}"), json!({})).await.map(drop)
    }

    /// Makes the leader of the cluster itself hand over to another server.
    pub async fn step_down_meta(&self) -> Result<(), String> {
        question(&self.operator, "$JS.API.META.LEADER.STEPDOWN", json!({})).await.map(drop)
    }

    /// The names of all streams.
    pub async fn stream_names(&self) -> Result<Vec<String>, String> {
        let name = |stream: &Value| stream["config"]["name"].as_str().unwrap_or("").to_owned();
        Ok(self.streams().await?.iter().map(name).collect())
    }

    async fn streams(&self) -> Result<Vec<Value>, String> {
        let mut streams = Vec::new();
        loop {
            let page = self.ask("STREAM.LIST", json!({"offset": streams.len()})).await?;
            if page["missing"].as_array().is_some_and(|missing| !missing.is_empty()) {
                return Err(format!("no answer of {}", page["missing"]));
            }
            streams.extend(page["streams"].as_array().into_iter().flatten().cloned());
            let got_all = page["total"].as_u64().is_none_or(|total| streams.len() as u64 >= total);
            if got_all || page["streams"].as_array().is_none_or(Vec::is_empty) {
                return Ok(streams);
            }
        }
    }

    async fn ask(&self, endpoint: &str, body: Value) -> Result<Value, String> {
        question(&self.client, &format!("$JS.API.{endpoint}"), body).await
    }

    /// Asks all servers at once and returns the answers that arrive within a moment.
    async fn ask_servers(&self, subject: &str, body: Value) -> Vec<Value> {
        let mut answers = Vec::new();
        let inbox = self.operator.new_inbox();
        let Ok(mut replies) = self.operator.subscribe(inbox.clone()).await else { return answers };
        let asked = self.operator.publish_with_reply(subject.to_owned(), inbox, body.to_string().into()).await;
        let all = async {
            while let Some(reply) = replies.next().await {
                answers.extend(serde_json::from_slice::<Value>(&reply.payload));
                if answers.len() == SERVERS {
                    return;
                }
            }
        };
        if asked.is_ok() {
            let _ = tokio::time::timeout(ANSWER_WITHIN, all).await;
        }
        answers
    }

    /// The server of that name.
    fn number(&self, name: &str) -> Option<usize> {
        let port = |server: &Server| server.port().to_string();
        self.servers.iter().position(|server| name.rsplit('-').next() == Some(&port(server)))
    }
}

fn join_urls(servers: &[Server]) -> String {
    servers.iter().map(Server::url).collect::<Vec<_>>().join(",")
}

async fn question(client: &Client, subject: &str, body: Value) -> Result<Value, String> {
    let request = Request::new().payload(body.to_string().into()).timeout(Some(ANSWER_WITHIN));
    let answer = client.send_request(subject.to_owned(), request).await.map_err(|error| chain(&error))?;
    let answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())?;
    if answer["error"].is_null() { Ok(answer) } else { Err(format!("{subject}: {}", answer["error"])) }
}

/// Whether a server's answer says that it leads the cluster itself; the leader alone knows how far the others are.
fn leads(answer: &&Value) -> bool {
    let leader = &answer["data"]["meta_cluster"]["leader"];
    leader.is_string() && *leader == answer["server"]["name"]
}

/// Whether a group of replicas, as the servers describe it, has a leader and no replica that is away or behind.
fn has_leader_and_is_in_step(group: &Value) -> bool {
    let led = group["leader"].as_str().is_some_and(|leader| !leader.is_empty());
    let well = |replica: &Value| {
        let behind = replica["lag"].as_u64().unwrap_or(0) > 0;
        replica["current"] == true && replica["offline"] != true && !behind
    };
    led && group["replicas"].as_array().into_iter().flatten().all(well)
}

/// The settings that make a server one of three. It advertises its addresses to no client: clients know all three, and
/// a server that learned another's own port would connect past the proxies. (`no_advertise` concerns clients; a server
/// tries routes that others gossip about at the address in `advertise`, where nothing listens.)
fn settings<'p>(route_port: u16, routes: impl Iterator<Item = &'p Proxy>) -> String {
    let routes: Vec<String> = routes.map(|proxy| format!("\"nats-route://{}\"", proxy.address())).collect();
    format!(
        "cluster {{\n  name: \"tests\"\n  listen: \"127.0.0.1:{route_port}\"\n  no_advertise: true\n  \
         advertise: \"127.0.0.1:1\"\n  routes: [{}]\n}}\n\
         accounts {{\n  JOBS {{ jetstream: enabled, users: [{{user: jobs, password: jobs}}] }}\n  \
         SYSTEM {{ users: [{{user: {SYSTEM}, password: {SYSTEM}}}] }}\n}}\n\
         system_account: SYSTEM\nno_auth_user: jobs\n",
        routes.join(", ")
    )
}

async fn proxy(target: u16) -> Proxy {
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, target))).await;
    proxy.unwrap_or_else(|error| panic!("no port for a proxy: {error}"))
}

/// Returns `count` different ports on which no process listened a moment ago, and which no outgoing connection gets.
pub fn free_ports(count: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = free_port();
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}
