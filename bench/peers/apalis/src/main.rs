//! apalis for `longshore-bench suite`: apalis-peer enqueue|drain JOBS URL
//! `begin` and `end` as in bullmq.mjs. Tasks are fetched and their ends stored in batches; completed ones are kept, as
//! is its default. Its storage in Redis (1.0.0) hands nothing out once more than about 8,000 tasks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    pad: String,
}

static STARTED: AtomicU64 = AtomicU64::new(0);

async fn noop(_: Noop, jobs: Data<u64>, all: Data<Arc<tokio::sync::Notify>>) -> Result<(), BoxDynError> {
    let before = STARTED.fetch_add(1, Ordering::Relaxed);
    if before == 0 {
        println!("begin");
    }
    if before + 1 == *jobs {
        all.notify_one();
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let [what, jobs, url] = std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "three arguments")?;
    let jobs: u64 = jobs.parse()?;
    let pool = PgPoolOptions::new().max_connections(20).connect(&url).await?;
    PostgresStorage::setup(&pool).await?;
    // Locks are for tasks that outlast a heartbeat.
    let config = Config::default().queue("bench").batch_size(500).lock_tasks(false);
    let mut storage = PostgresStorage::<Noop>::new(&pool).with_config(config);
    let end = async || {
        println!("end apalis 1.0.0");
        tokio::time::sleep(Duration::from_secs(60)).await;
    };
    if what == "enqueue" {
        println!("begin");
        let one = Noop { pad: "x".repeat(246) };
        for sent in (0..jobs).step_by(1_000) {
            let count = usize::try_from((jobs - sent).min(1_000))?;
            storage.push_bulk(vec![one.clone(); count]).await.map_err(|error| format!("{error:?}"))?;
        }
        end().await;
        return Ok(());
    }
    let all = Arc::new(tokio::sync::Notify::new());
    let worker = WorkerBuilder::new("bench").backend(storage).data(jobs).data(Arc::clone(&all)).concurrency(64);
    tokio::spawn(worker.build(noop).run());
    all.notified().await;
    let left = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
    while sqlx::query_scalar::<_, i64>(left).fetch_one(&pool).await? > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    end().await;
    Ok(())
}
