//! What `longshore doctor` finds, for those who have a browser alone: the program that runs the node looks, with the
//! node's own login and settings. This shows the answer, and sees that one look is taken at a time.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use futures_util::future::BoxFuture;
use longshore_backbone::wire::api::{ApiError, OPERATOR, Scope};
use serde_json::Value;
use tokio::sync::Mutex;

use super::asker::Guard;
use super::gateway::request::Query;
use super::gateway::{asker, shown};
use super::problem::Answered;

/// Looks for faults of the set-up.
pub struct Doctor {
    look: Box<dyn Fn() -> BoxFuture<'static, Value> + Send + Sync>,
    one_at_a_time: Mutex<()>,
}

impl Doctor {
    /// `look` answers with `findings` and the `worst` of them.
    pub fn new<F: Future<Output = Value> + Send + 'static>(look: impl Fn() -> F + Send + Sync + 'static) -> Self {
        Self { look: Box::new(move || Box::pin(look())), one_at_a_time: Mutex::default() }
    }
}

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doctor").finish_non_exhaustive()
    }
}

/// Known once the program has said it.
pub(super) type Known = Arc<OnceLock<Doctor>>;

pub(super) fn router(guard: Guard) -> Router {
    Router::new().route("/v1/doctor", get(found)).with_state(guard)
}

async fn found(State(guard): State<Guard>, parts: Parts) -> Answered {
    let asker = asker(&parts)?;
    asker.must_have(Scope::Read)?;
    asker.must_be(OPERATOR)?;
    Query::read(&parts)?.must_be_empty()?;
    let none = || ApiError::not_found("the program that runs this node looks for no faults of its set-up");
    let doctor = guard.doctor.get().ok_or_else(none)?;
    let _alone = doctor.one_at_a_time.lock().await;
    Ok(shown(StatusCode::OK, (doctor.look)().await.to_string().into_bytes()))
}
