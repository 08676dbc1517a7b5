//! The three servers form one cluster, and each fault has the effect that its name promises.
#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};
use longshore_harness::{SERVERS, World, eventually};

const WITHIN: Duration = Duration::from_secs(30);

async fn stream(world: &World) {
    let config = Config {
        name: "ALL".to_owned(),
        subjects: vec!["all".to_owned()],
        num_replicas: SERVERS,
        storage: StorageType::File,
        ..Config::default()
    };
    // On a busy machine the cluster may take longer to agree than the client waits for its answer.
    let jetstream = world.jetstream();
    eventually("the stream", WITHIN, async || jetstream.get_or_create_stream(config.clone()).await.map(drop)).await;
}

/// Publishes through one chosen server, once.
async fn publish(world: &World, number: usize) -> Result<(), String> {
    let client = async_nats::connect(world.servers().server(number).url()).await.map_err(|error| error.to_string())?;
    let mut jetstream = async_nats::jetstream::new(client);
    jetstream.set_timeout(Duration::from_secs(1));
    let sent = jetstream.publish("all", "x".into()).await.map_err(|error| error.to_string())?;
    sent.await.map(drop).map_err(|error| error.to_string())
}

async fn eventually_publishes(world: &World, number: usize) {
    eventually(&format!("a publish through server {number}"), WITHIN, async || publish(world, number).await).await;
}

#[tokio::test]
async fn a_server_cut_off_takes_nothing_while_the_others_go_on_and_after_the_healing_all_do() {
    let world = World::cluster().await;
    stream(&world).await;
    for number in 0..SERVERS {
        eventually_publishes(&world, number).await;
    }
    let servers = world.servers();
    // The others learn of a server that comes back; they must not find a way to it past the proxies.
    servers.server(0).restart().await.unwrap();
    servers.server(2).restart().await.unwrap();
    servers.in_step().await;
    servers.isolate(0);
    eventually_publishes(&world, 1).await;
    eventually_publishes(&world, 2).await;
    assert!(publish(&world, 0).await.is_err());
    servers.heal();
    eventually_publishes(&world, 0).await;
    servers.in_step().await;
}

#[tokio::test]
async fn a_client_behind_a_proxy_can_lose_its_server_alone() {
    let world = World::cluster().await;
    stream(&world).await;
    let proxy = world.servers().proxy(1).await;
    let client = async_nats::connect(format!("nats://{}", proxy.address())).await.unwrap();
    let request = || client.request("all", "x".into());
    eventually("a publish through the proxy", WITHIN, request).await;
    proxy.cut();
    assert!(tokio::time::timeout(Duration::from_secs(1), request()).await.is_err());
    eventually_publishes(&world, 1).await;
    proxy.heal();
    eventually("a publish through the proxy", WITHIN, request).await;
}

#[tokio::test]
async fn leaders_move_when_they_step_down_or_die_and_a_dead_server_comes_back_with_its_store() {
    let world = World::cluster().await;
    stream(&world).await;
    let servers = world.servers();
    let leader = servers.stream_leader("ALL").await.unwrap();
    servers.step_down_stream("ALL").await.unwrap();
    let next = eventually("another leader", WITHIN, async || match servers.stream_leader("ALL").await {
        Some(next) if next != leader => Ok(next),
        other => Err(format!("{other:?}")),
    })
    .await;
    servers.server(next).kill9().await;
    eventually("a leader that lives", WITHIN, async || match servers.stream_leader("ALL").await {
        Some(after) if after != next => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    eventually_publishes(&world, (next + 1) % SERVERS).await;
    servers.server(next).restart().await.unwrap();
    servers.in_step().await;
    let meta = servers.meta_leader().await.unwrap();
    servers.step_down_meta().await.unwrap();
    eventually("another leader of the cluster", WITHIN, async || match servers.meta_leader().await {
        Some(next) if next != meta => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
