//! A node with handlers in Rust: one greets, one counts and reports how far it is.
//!
//! ```sh
//! cargo run --example own_handler
//! longshore submit greet '{"name":"Ada"}' --wait
//! longshore submit count '{"to":20}' --wait
//! ```
//!
//! It needs a NATS server with JetStream (`longshore dev` starts one) and takes settings from the environment, as
//! `longshore serve` does. It may share a queue with nodes that have other handlers.

use std::time::Duration;

use longshore::{Context, HandlerError, RunError, typed};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Greet {
    name: String,
}

#[derive(Deserialize)]
struct Count {
    to: u32,
}

async fn count(count: Count, context: Context) -> Result<Value, HandlerError> {
    context.log(format!("counting to {}", count.to)).await;
    for number in 1..=count.to {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
            () = context.cancelled() => return Err(HandlerError::retryable(format!("stopped at {number}"))),
        }
        context.progress(&json!({"percent": 100 * number / count.to})).await;
    }
    Ok(json!({"counted": count.to}))
}

#[tokio::main]
async fn main() -> Result<(), RunError> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();

    let greeting = "Hello".to_owned(); // a closure may bring along what it needs: a pool, a client, a cache
    let greet = move |greet: Greet, context: Context| {
        let said = format!("{greeting}, {}!", greet.name);
        async move { Ok(json!({ "greeting": said, "attempt": context.attempt })) }
    };

    let node = longshore::node().handler("greet", typed(greet)).handler("count", typed(count));
    node.run_until_signal().await // SIGTERM or Ctrl-C drains
}
