//! The faults of servers in a chaos run: the only server is killed; or one of three is killed, frozen or cut off, or
//! leaders are asked to step down.
//!
//! While a server is away, and until the others have a new leader, no node may have been able to renew its leases.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::RngExt;

use super::faults::Faults;
use crate::cluster::{SERVERS, ServerCluster};
use crate::history::Silence;

/// How long nodes may need to reconnect to a server that is back.
const RECONNECT: SignedDuration = SignedDuration::from_millis(500);

/// How long an election may take, including the time in which nodes find the new leaders.
const ELECTION: SignedDuration = SignedDuration::from_secs(10);

/// How long one of three servers is away, in milliseconds: with an election and without.
const AWAY: std::ops::Range<u64> = 500..9_000;

impl Faults<'_> {
    pub(super) async fn kill_server(&mut self) {
        let from = self.note("kill -9 of the server", "it");
        self.world.server().kill9().await;
        self.interrupted(None);
        self.pause(0..1_500).await;
        let restarted = self.world.server().restart().await;
        restarted.unwrap_or_else(|error| panic!("the server does not come back: {error}"));
        self.silences.push(Silence { node: None, from, until: Timestamp::now() + RECONNECT });
    }

    /// Hurts one of three servers, or cuts the route between two.
    pub(super) async fn hurt_servers(&mut self) {
        let servers = self.world.servers();
        let one = self.chance.random_range(0..SERVERS);
        let other = (one + self.chance.random_range(1..SERVERS)) % SERVERS;
        let name = format!("server {one}");
        let from = match self.chance.random_range(0..6) {
            0 => {
                let from = self.note("kill -9 of a server", name);
                servers.server(one).kill9().await;
                self.interrupted(None);
                self.pause(AWAY).await;
                let restarted = servers.server(one).restart().await;
                restarted.unwrap_or_else(|error| panic!("server {one} does not come back: {error}"));
                from
            }
            1 => {
                let from = self.note("SIGSTOP of a server", name);
                servers.server(one).sigstop();
                self.pause(AWAY).await;
                servers.server(one).sigcont();
                from
            }
            2 => {
                let from = self.note("a server cut off from both others", name);
                servers.isolate(one);
                self.pause(AWAY).await;
                from
            }
            3 => {
                let from = self.note("two servers cut from each other", format!("servers {one} and {other}"));
                servers.cut(one, other);
                self.pause(AWAY).await;
                from
            }
            4 => {
                let from = self.note("a server cut off from another, one way", format!("server {other} to {one}"));
                servers.cut_one_way(one, other);
                self.pause(AWAY).await;
                from
            }
            _ => self.step_down(servers).await,
        };
        servers.heal();
        servers.in_step().await;
        self.silences.push(Silence { node: None, from, until: Timestamp::now() + ELECTION });
    }

    async fn step_down(&mut self, servers: &ServerCluster) -> Timestamp {
        let names = servers.stream_names().await.unwrap_or_default();
        let stream = names.get(self.chance.random_range(0..names.len().max(1))).cloned().unwrap_or_default();
        let (from, done) = match self.chance.random_range(0..3) {
            0 => (self.note("step-down of a stream's leader", &stream), servers.step_down_stream(&stream).await),
            1 if stream.contains("_JOBS_") => {
                let from = self.note("step-down of a consumer's leader", &stream);
                (from, servers.step_down_consumer(&stream, "work").await)
            }
            _ => (self.note("step-down of the cluster's leader", "it"), servers.step_down_meta().await),
        };
        if let Err(error) = done {
            // The answer may be lost together with the leader.
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.log.last_mut().expect("noted above").whom.push_str(&format!(" ({error})"));
        }
        from
    }
}
