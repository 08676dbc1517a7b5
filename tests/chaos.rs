//! While nodes, handlers and servers are killed, frozen, cut off and asked to end, every job ends exactly once.
//!
//! The long run is a program: `cargo run --release -p longshore-harness --bin chaos -- --seed 7 --jobs 20000 --nodes 3
//! [--servers 3] [--raw-bytes 1] [--clocks 3]`.

use longshore_harness::chaos::Chaos;

async fn is_sound(three_servers: bool, rate: u32) {
    crate::use_binary();
    let clocks = crate::times("LONGSHORE_TEST_CLOCKS", 0) as i64;
    let seed = crate::times("LONGSHORE_TEST_SEED", usize::try_from(jiff::Timestamp::now().as_second()).unwrap());
    let chaos = Chaos { seed: seed as u64, jobs: 500, rate, nodes: 3, three_servers, raw_bytes: false, clocks };

    let report = chaos.run().await;

    println!("{report}");
    let (wrong, violations, known) = (&report.wrong, report.violations_by_kind(), report.evidence.join("\n"));
    let stalled = report.stalled;
    assert!(report.is_sound(), "seed {seed}, stood still for {stalled:?}; {wrong:?}, {violations:?}\n{known}");
}

/// Given jobs of every kind on three nodes, when faults of every kind happen all the while, then the history is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_of_every_kind_loses_nothing() {
    is_sound(false, 40).await;
}

/// Given the same on three servers, when the servers are killed, frozen, cut off and lose their leaderships as well,
/// then the history is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "much work for three servers: cargo xtask soak"]
async fn trouble_of_three_servers_loses_nothing() {
    is_sound(true, 15).await;
}
