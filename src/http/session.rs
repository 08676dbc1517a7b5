//! Sessions: a browser asks as the holder of a key without keeping the key.
//!
//! `POST /v1/session` takes a key and answers with a cookie, which scripts cannot read and other sites cannot send; it
//! counts for twelve hours, on every node, as long as its key does. What it may is what its key may.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use longshore_backbone::api_keys::SESSION_SECONDS;
use longshore_backbone::wire::api::{ApiError, Code, KeyStatus, OPERATOR, Scope, read};
use serde::Deserialize;
use serde_json::json;

use super::asker::{Guard, admit, unauthorized};
use super::cookie::{self, FromPage};
use super::gateway::{self, Gateway};
use super::problem::Answered;
use crate::config::Auth;

pub(super) fn router(gateway: Gateway) -> Router {
    // Who logs in has no session yet.
    let of_asker = get(shown).delete(log_out).layer(from_fn_with_state(gateway.guard.clone(), admit));
    Router::new().route("/v1/session", of_asker.post(log_in)).with_state(gateway)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogIn {
    key: String,
}

async fn log_in(State(Gateway { guard, bodies }): State<Gateway>, request: Request) -> Answered {
    let (parts, body) = request.into_parts();
    if guard.http.auth == Auth::Off {
        guard.may_ask(&parts.headers)?;
        return Ok(whose(&guard, None));
    }
    same_site(&parts.headers)?;
    let body = bodies.json(&parts.headers, body).await?;
    let LogIn { key } = read(&body.bytes)?;
    let (text, key) = guard.node()?.api().keys().log_in(key.trim()).await?.ok_or_else(unauthorized)?;
    tracing::info!(key = %key.id, "a session was opened");
    let mut answer = whose(&guard, Some(&key));
    set_cookie(&mut answer, &guard, &text, SESSION_SECONDS, &parts.headers);
    Ok(answer)
}

async fn log_out(State(Gateway { guard, .. }): State<Gateway>, parts: Parts) -> Answered {
    if let Some(session) = cookie::read(&parts.headers) {
        guard.node()?.api().keys().log_out(session).await?;
    }
    let mut answer = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut answer, &guard, "", 0, &parts.headers);
    Ok(answer)
}

async fn shown(State(Gateway { guard, .. }): State<Gateway>, parts: Parts) -> Answered {
    Ok(whose(&guard, gateway::asker(&parts)?.key()))
}

/// Who asks, and what the page shows of the installation.
fn whose(guard: &Guard, key: Option<&KeyStatus>) -> Response {
    let all = || [Scope::Submit, Scope::Read, Scope::Operate, Scope::Reveal].map(Into::into).to_vec();
    let answer = json!({
        "auth": guard.http.auth.as_str(),
        "environment": guard.http.environment,
        "environment_color": guard.http.environment_color,
        "trace_url": guard.http.trace_url,
        "name": key.map(|key| &key.name),
        "scopes": key.map_or_else(all, |key| key.scopes.clone()),
        "tenant": key.map_or(OPERATOR, |key| &key.tenant),
    });
    gateway::shown(StatusCode::OK, answer.to_string().into_bytes())
}

/// No other site may log a browser in.
fn same_site(headers: &HeaderMap) -> Result<(), ApiError> {
    match cookie::from_page(headers) {
        FromPage::Own | FromPage::Unknown => Ok(()),
        FromPage::Foreign(by) => {
            Err(ApiError::new(Code::Forbidden, format!("{by}: a page of another origin may not log in")))
        }
    }
}

fn set_cookie(answer: &mut Response, guard: &Guard, session: &str, seconds: u64, headers: &HeaderMap) {
    // What a proxy says can only make the cookie stricter.
    let by_proxy = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme.as_bytes() == b"https");
    let secure = if guard.http.tls.is_some() || by_proxy { "; Secure" } else { "" };
    let path = &guard.http.base_path;
    let name = cookie::NAME;
    let cookie = format!("{name}={session}; Path={path}/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([(header::COOKIE, text.parse().unwrap())]);
            cookie::read(&headers).map(str::to_owned)
        };
        assert_eq!(read("a=b; longshore_session=ls_1_2; c=d").as_deref(), Some("ls_1_2"));
        assert_eq!(read("longshore_session_old=x; a=longshore_session"), None);
        assert_eq!(cookie::read(&HeaderMap::new()), None);
    }

    #[test]
    fn only_the_own_page_logs_in() {
        let may = |headers: &[(&'static str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            same_site(&headers).is_ok()
        };
        let (host, own, foreign) = (("host", "a:1"), ("origin", "https://a:1"), ("origin", "http://evil.example"));
        assert!(may(&[host]) && may(&[host, own]) && may(&[host, foreign, ("sec-fetch-site", "same-origin")]));
        assert!(!may(&[host, foreign]) && !may(&[host, ("origin", "null")]) && !may(&[own]));
        assert!(!may(&[host, own, ("sec-fetch-site", "same-site")]));
    }
}
