//! A node of your own, with a handler in Rust: a closure that greets.
//!
//! ```sh
//! cargo run --example own_handler
//! longshore submit greet '{"name":"Ada"}' --wait
//! ```
//!
//! It needs a NATS server with JetStream (`longshore dev` starts one) and takes settings from the environment, as
//! `longshore serve` does.

use longshore::{Configuration, Context, HandlerError, Node, handlers, nats};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();

    let greeting = "Hello".to_owned(); // a closure may bring along what it needs: a pool, a client, a cache
    let greet = move |context: Context| {
        let greeting = greeting.clone();
        async move {
            let payload: Value = context.json()?;
            let name = payload["name"].as_str().ok_or_else(|| HandlerError::permanent("payload: name is missing"))?;
            Ok::<_, HandlerError>(json!({ "greeting": format!("{greeting}, {name}!"), "attempt": context.attempt }))
        }
    };

    let handlers = handlers::built_in().with("greet", greet);
    let configuration = Configuration::load(None, &[], &handlers)?;
    let connection = nats::Options::from_environment()?.connection()?;
    let mut node = Node::start(configuration.settings().clone(), connection, handlers).await?;
    println!("serving greet; Ctrl-C ends");
    tokio::select! {
        error = node.failed() => return Err(error.into()),
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(node.drain().await?)
}
