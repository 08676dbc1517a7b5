//! A node brings streams into the configured shape, and never discards messages for it.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::stream::{Info, StorageType};
use futures_util::TryStreamExt as _;
use longshore_harness::World;
use longshore_natsd::Options;

use crate::{logged, without_node, world};

const STREAM: &str = "LONGSHORE_EVENTS";

/// Given a stream with a larger limit than the settings, when the node starts, then the stream stays and the node says
/// so; the node shrinks it only if that is allowed, and logs the old and the new limits.
#[tokio::test]
async fn what_holds_more_than_is_set_is_not_made_smaller_unasked() {
    let world = world().await;
    let age = async || {
        let stream = world.jetstream().get_stream(STREAM).await.unwrap();
        stream.cached_info().config.max_age
    };
    let week = Duration::from_secs(7 * 86_400);
    world.node().with("storage", "events_max_age = '7d'").start().await.stop().await;
    assert_eq!(age().await, week);

    let small = world.node().name("small").with("storage", "events_max_age = '1h'").start().await;
    assert_eq!(age().await, week);
    let line = logged(small.log(), "allow_shrink").await;
    assert!(line.contains(STREAM) && line.contains("max_age") && line.contains("604800s"), "{line}");
    small.stop().await;

    let asked = world.node().name("asked").with("storage", "events_max_age = '1h'\nallow_shrink = true").start().await;
    assert_eq!(age().await, Duration::from_secs(3_600));
    let line = logged(asked.log(), "max_age was 604800s, is 3600s now").await;
    assert!(line.contains(STREAM), "{line}");
    asked.stop().await;

    world.node().name("larger").with("storage", "events_max_age = '7d'").start().await.stop().await;
    assert_eq!(age().await, week, "to hold more needs no permission");
}

/// Given an account that may have one stream less than a node needs, when the node starts, then it says how many it
/// needs; with so many it starts.
#[tokio::test]
async fn an_account_with_too_few_streams_says_how_many_are_needed() {
    let world = async |max: usize| {
        let jetstream = format!("{{ max_streams: {max}, max_file: 100G, max_memory: 200M }}");
        let extra = format!(
            "accounts: {{ a: {{ jetstream: {jetstream}, users: [{{ user: u, password: p }}] }} }}\nno_auth_user: u"
        );
        let options = Options { max_file: longshore_harness::ROOM, extra, ..Options::default() };
        crate::use_binary();
        World::with_login(options, ConnectOptions::new()).await
    };
    let small = world(15).await;
    let said = small.node().try_start().await.unwrap_err().to_string();
    let (_, rest) = said.split_once("the account may have no more streams; ").unwrap_or_else(|| panic!("{said}"));
    let needed: usize = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(rest.contains("are needed in all"), "{said}");
    let enough = world(needed).await;
    let _node = enough.node().start().await;
    let names: Vec<String> = enough.jetstream().stream_names().try_collect().await.unwrap();
    assert_eq!(names.len(), needed, "{names:?}");
}

/// Given another program's stream with the name of one of our streams, when a node starts, then it refuses to start,
/// and the stream stays as it was.
#[tokio::test]
async fn a_stream_of_another_program_is_not_taken_over() {
    let world = world().await;
    let theirs = async_nats::jetstream::stream::Config {
        name: "LONGSHORE_DLQ".to_owned(),
        subjects: vec!["orders.dead.>".to_owned()],
        ..Default::default()
    };
    world.jetstream().create_stream(theirs).await.unwrap();

    let refusal = world.node().try_start().await.unwrap_err();

    assert!(refusal.to_string().contains("stream LONGSHORE_DLQ has subjects"), "{refusal}");
    let stream = world.jetstream().get_stream("LONGSHORE_DLQ").await.unwrap();
    assert_eq!(stream.cached_info().config.subjects, ["orders.dead.>"]);
}

/// The size that all streams together may reach on the server's disk, in GiB.
async fn reserved(world: &World) -> f64 {
    let streams: Vec<Info> = world.jetstream().streams().try_collect().await.unwrap();
    let on_disk = streams.iter().filter(|stream| stream.config.storage == StorageType::File);
    let bytes: i64 = on_disk.map(|stream| stream.config.max_bytes.max(0)).sum();
    bytes as f64 / f64::from(1 << 30)
}

/// Given an empty server, when a node with one queue starts, and then one with another queue, then the streams reserve
/// as much as the documents say; the same holds for the limits in docker-compose.yml.
#[tokio::test]
async fn as_much_is_reserved_as_the_documents_say() {
    const README: &str = include_str!("../README.md");
    const OPERATIONS: &str = include_str!("../docs/operations.md");
    const COMPOSE: &str = include_str!("../docker-compose.yml");
    let default = world().await;
    without_node(default.node()).await;
    let one = reserved(&default).await;
    without_node(default.node().with("queues.other", "")).await;
    let further = reserved(&default).await - one;

    assert!(README.contains(&format!("{one:.0} GiB by default")), "{one}");
    assert!(COMPOSE.contains(&format!("{one:.0} GiB by default for one queue")), "{one}");
    assert!(OPERATIONS.contains(&format!("| **one queue, in all** | **{one:.0} GiB** |")), "{one}");
    assert!(OPERATIONS.contains(&format!("| each further queue | {further} GiB |")), "{further}");

    let small = world().await;
    let bounds = COMPOSE.lines().filter_map(|line| line.trim().strip_prefix("LONGSHORE_")?.split_once(": "));
    let node = bounds.fold(small.node(), |node, (name, value)| node.env(&format!("LONGSHORE_{name}"), value));
    without_node(node).await;
    let all = reserved(&small).await;
    assert!(COMPOSE.contains(&format!("These bounds ask for {all:.1} GiB")), "{all}");
}
