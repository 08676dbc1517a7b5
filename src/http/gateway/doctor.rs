//! `GET /v1/doctor`: what the program that runs the node finds wrong with its set-up.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use longshore_backbone::wire::api::{ApiError, OPERATOR, Scope};

use super::request::Query;
use super::{asker, shown};
use crate::http::asker::Guard;
use crate::http::problem::Answered;

pub(crate) fn router(guard: Guard) -> Router {
    Router::new().route("/v1/doctor", get(found)).with_state(guard)
}

async fn found(State(guard): State<Guard>, parts: Parts) -> Answered {
    let asker = asker(&parts)?;
    asker.must_have(Scope::Read)?;
    asker.must_be(OPERATOR)?;
    Query::read(&parts)?.must_be_empty()?;
    let none = || ApiError::not_found("the program that runs this node looks for no faults of its set-up");
    let doctor = guard.doctor.get().ok_or_else(none)?;
    Ok(shown(StatusCode::OK, doctor.looks().await.to_string().into_bytes()))
}
