//! The handlers that come with Longshore, inside the node.
//!
//! Each is an ordinary [`longshore_actors::Handler`] and can do no more than a handler of the user's own.

use longshore_actors::Handlers;
#[cfg(any(feature = "http", feature = "email"))]
use longshore_actors::{Context, HandlerError};

pub(crate) mod command_run;
#[cfg(feature = "email")]
pub(crate) mod email_send;
#[cfg(feature = "http")]
pub(crate) mod http_call;
mod trial;

/// The handlers that every node has: `noop`, `echo`, `sleep`, `fail`, and with HTTP `http.call`. Those that have
/// settings are made with them, by [`Configuration`](crate::Configuration).
pub fn built_in() -> Handlers {
    let handlers = trial::add(Handlers::new());
    #[cfg(feature = "http")]
    let handlers = handlers.with_everywhere("http.call", http_call::HttpCall::strict());
    handlers
}

/// The payload, a JSON object; a field that is wrong fails the job for good.
#[cfg(any(feature = "http", feature = "email"))]
fn payload<T: serde::de::DeserializeOwned>(context: &Context) -> Result<T, HandlerError> {
    longshore_backbone::wire::api::read(&context.payload).map_err(|error| {
        let said = error.message.strip_prefix("the request ").unwrap_or(&error.message);
        HandlerError::permanent(format!("payload: {said}"))
    })
}
