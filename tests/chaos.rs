//! While nodes, handlers and the server are killed, frozen and asked to end, every job ends exactly once.
//!
//! The long way is a program: `cargo run --release -p longshore-harness --bin chaos -- --seed 7 --jobs 20000 --nodes 3`.

use longshore_harness::chaos::Chaos;

/// Given jobs of every kind on three nodes, when there is trouble all the while, then the history is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_of_every_kind_loses_nothing() {
    longshore_harness::use_binary(env!("CARGO_BIN_EXE_longshore"));
    let seed = crate::times("LONGSHORE_TEST_SEED", usize::try_from(jiff::Timestamp::now().as_second()).unwrap());
    let chaos = Chaos { seed: seed as u64, jobs: 500, rate: 40, nodes: 3 };

    let report = chaos.run().await;

    println!("{report}");
    assert!(report.is_sound(), "{report}");
}
