//! Who asks: the guard before every route of the API.
//!
//! With `http.auth = "keys"` a request brings a key, which says the tenant and the permissions ([`Asker`]); none, and
//! any that does not count, get the same answer. With "off" every client that reaches the listener is the operator.
//! That is for this machine: the request names a loopback host (a page cannot reach it by a name that was bound to
//! 127.0.0.1) and no proxy, and no browser says that a page of another origin sent it, unless `http.cors_origins` has
//! that one. A key is never a cookie; a session is, which no page of another origin can use (`session`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use longshore_actors::Observer;
use longshore_backbone::wire::api::{ApiError, Code, CreateKeyRequest, Declaration, KeyStatus, OPERATOR, Scope, Word};
use tokio_util::sync::CancellationToken;

use super::jwt::Jwt;
use super::problem::{Answered, of_http};
use super::{Node, cookie, cors, doctor};
use crate::config::{Auth, Http};

/// How often a long answer looks whether its asker may still have it.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) address: SocketAddr,
    pub(super) http: Arc<Http>,
    pub(super) jwt: Option<Arc<Jwt>>,
    pub(super) node: Node,
    pub(super) doctor: doctor::Known,
    /// Set when the listeners are to end.
    pub(super) ends: CancellationToken,
}

#[derive(Clone)]
pub(super) struct Asker(Option<Arc<HeldKey>>);

/// A key, and who knows it.
struct HeldKey {
    text: String,
    key: KeyStatus,
    judge: Judge,
}

/// Who says whose a key is.
#[derive(Clone)]
enum Judge {
    /// The cluster, of its API keys and sessions.
    Node(Observer),
    /// An identity provider's keys, of its tokens.
    Jwt(Arc<Jwt>),
}

impl Judge {
    async fn holder(&self, text: &str) -> Result<KeyStatus, ApiError> {
        let holder = match self {
            Self::Node(node) => node.api().keys().holder(text).await?,
            Self::Jwt(jwt) => jwt.holder(text).await?,
        };
        holder.ok_or_else(unauthorized)
    }
}

impl Asker {
    /// As what the audit names it.
    pub(super) fn by(&self) -> String {
        let Some(held) = &self.0 else { return "http".to_owned() };
        let kind = if matches!(held.judge, Judge::Jwt(_)) { "jwt" } else { "key" };
        format!("{kind}:{}", held.key.id)
    }

    /// The key; `None`: it needs none.
    pub(super) fn key(&self) -> Option<&KeyStatus> {
        self.0.as_ref().map(|held| &held.key)
    }

    /// The tenant that is meant where none is named.
    pub(super) fn tenant(&self) -> &str {
        let own = self.0.as_ref().map(|held| held.key.tenant.as_str());
        own.filter(|own| *own != OPERATOR).unwrap_or("default")
    }

    /// 403 if it may not ask as this tenant.
    pub(super) fn must_be(&self, tenant: &str) -> Result<(), ApiError> {
        match self.0.as_ref().map(|held| held.key.tenant.as_str()) {
            Some(own) if own != OPERATOR && own != tenant => {
                let message = match tenant {
                    OPERATOR => "this is the operator's: it needs a key of tenant _all".to_owned(),
                    _ => format!("tenant: the key is for tenant {own} alone"),
                };
                Err(ApiError::new(Code::Forbidden, message))
            }
            _ => Ok(()),
        }
    }

    /// 403 if its key lacks a scope that the endpoint needs.
    pub(super) fn may_ask(&self, declaration: &Declaration) -> Result<(), ApiError> {
        declaration.scopes().iter().try_for_each(|scope| self.must_have(*scope))
    }

    /// 403 if its key lacks this scope.
    pub(super) fn must_have(&self, scope: Scope) -> Result<(), ApiError> {
        let scope = Word::Known(scope);
        match &self.0 {
            Some(held) if !held.key.scopes.contains(&scope) => {
                Err(ApiError::new(Code::Forbidden, format!("the key lacks the scope {scope}")))
            }
            _ => Ok(()),
        }
    }

    /// 403 if the key that it asks for would show what its own does not, or outlive it. A key that may `operate`
    /// submits by schedules as well: so it may make one that submits.
    pub(super) fn may_make(&self, wanted: &CreateKeyRequest) -> Result<(), ApiError> {
        for scope in [Scope::Read, Scope::Reveal].into_iter().filter(|scope| wanted.scopes.contains(scope)) {
            self.must_have(scope)?;
        }
        match self.key().and_then(|key| key.expires_at) {
            Some(end) if wanted.expires_at.is_none_or(|at| at > end) => {
                let message = format!("expires_at: is missing, or later than {end}, when the key that asks ends");
                Err(ApiError::new(Code::Forbidden, message))
            }
            _ => Ok(()),
        }
    }

    /// 401 if its key does not count any more, 503 if nobody can say.
    pub(super) async fn must_still_be(&self) -> Result<(), ApiError> {
        let Some(held) = &self.0 else { return Ok(()) };
        held.judge.holder(&held.text).await.map(drop)
    }

    /// Returns once its key does not count any more; never for one that needs none.
    pub(super) async fn ends(self) {
        if self.0.is_none() {
            std::future::pending::<()>().await;
        }
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            if self.must_still_be().await.is_err_and(|error| error.code == StatusCode::UNAUTHORIZED.as_u16()) {
                return;
            }
        }
    }
}

/// Refuses whom the module's head does not name.
pub(super) async fn admit(State(guard): State<Guard>, mut request: Request, next: Next) -> Answered {
    let asker = match guard.http.auth {
        Auth::Keys => guard.holder(request.method(), request.headers()).await?,
        Auth::Off => guard.may_ask(request.headers()).map(|()| Asker(None))?,
    };
    request.extensions_mut().insert(asker.clone());
    let mut answer = next.run(request).await;
    // For the log.
    answer.extensions_mut().insert(asker);
    Ok(answer)
}

/// Lets those through who read as the operator.
pub(super) async fn must_read_all(request: Request, next: Next) -> Answered {
    let asker = request.extensions().get::<Asker>().ok_or_else(unauthorized)?;
    asker.must_be(OPERATOR)?;
    asker.must_have(Scope::Read)?;
    Ok(next.run(request).await)
}

impl Guard {
    /// 503 while the node starts.
    pub(super) fn node(&self) -> Result<&Observer, ApiError> {
        self.node.get().ok_or_else(|| ApiError::unavailable("the node is starting"))
    }

    /// 403 if a request without a key may be a page's, or come by a proxy.
    pub(super) fn may_ask(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let allowed = cors::allowed(&self.http.cors_origins, headers).is_some();
        let scheme = if self.http.tls.is_some() { "https://" } else { "http://" };
        may_ask(self.address, headers, scheme, allowed).map_err(|reason| ApiError::new(Code::Forbidden, reason))
    }

    /// Who has the key, or the session, of a request.
    async fn holder(&self, method: &Method, headers: &HeaderMap) -> Result<Asker, ApiError> {
        let text = match (bearer(headers), cookie::read(headers)) {
            (None, Some(session)) => {
                cookie::changes_from_own_page(method, headers)?;
                session
            }
            (text, _) => text.ok_or_else(unauthorized)?,
        };
        let judge = match &self.jwt {
            Some(jwt) if Jwt::is_one(text) => Judge::Jwt(Arc::clone(jwt)),
            _ => Judge::Node(self.node()?.clone()),
        };
        let key = judge.holder(text).await?;
        Ok(Asker(Some(Arc::new(HeldKey { text: text.to_owned(), key, judge }))))
    }
}

/// The key of `Authorization: Bearer <key>`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (scheme, key) = given.next()?.to_str().ok()?.split_once(' ')?;
    (given.next().is_none() && scheme.eq_ignore_ascii_case("bearer")).then(|| key.trim())
}

/// The one answer to a request without a key that counts.
pub(super) fn unauthorized() -> ApiError {
    of_http(StatusCode::UNAUTHORIZED, "unauthorized", "Authorization: Bearer with a key that counts is needed")
}

/// `allowed`: the page that sent it, if one did, may ask.
fn may_ask(address: SocketAddr, headers: &HeaderMap, scheme: &str, allowed: bool) -> Result<(), &'static str> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    // On any other address the API is open by `http.allow_open`, at whatever name.
    if address.ip().is_loopback() && !is_loopback(host) {
        return Err("Host: is no loopback name, such as localhost or 127.0.0.1");
    }
    if ["forwarded", "x-forwarded-for", "x-real-ip"].iter().any(|name| headers.contains_key(*name)) {
        return Err("it came by a proxy, each of whose clients would be the operator");
    }
    if allowed {
        return Ok(());
    }
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    if origin.is_some_and(|origin| origin.strip_prefix(scheme) != Some(host)) {
        return Err("Origin: a page of another origin may not ask");
    }
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default());
    match site {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err("Sec-Fetch-Site: a page of another origin may not ask"),
    }
}

/// Whether a `Host`, with or without a port, names this machine alone.
fn is_loopback(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(address: &str, headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        may_ask(address.parse().unwrap(), &headers, "http://", false).is_ok()
    }

    #[test]
    fn only_programs_of_this_machine_may_ask() {
        let here = "127.0.0.1:8080";
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.0.0.2"] {
            assert!(may(here, &[("host", host)]), "{host}");
        }
        for host in ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1:8080", "0.0.0.0"] {
            assert!(!may(here, &[("host", host)]), "{host}");
        }
        assert!(!may(here, &[]), "no Host at all");
        assert!(may("0.0.0.0:8080", &[("host", "node.internal")]), "http.allow_open says so");
        let page = [("host", "node.internal"), ("origin", "http://evil.example")];
        assert!(!may("0.0.0.0:8080", &page), "a page of another origin may not even then");
    }

    #[test]
    fn a_key_is_read_from_one_header_alone() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(read(&["Bearer ls_a_b"]).as_deref(), Some("ls_a_b"));
        assert_eq!(read(&["bearer  ls_a_b "]).as_deref(), Some("ls_a_b"));
        for wrong in [&[][..], &["ls_a_b"], &["Basic ls_a_b"], &["Bearer a", "Bearer b"]] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn pages_of_another_origin_may_not_ask() {
        let with = |name, value| may("127.0.0.1:8080", &[("host", "localhost:8080"), (name, value)]);
        assert!(with("origin", "http://localhost:8080") && with("sec-fetch-site", "same-origin"));
        for origin in ["http://evil.example", "null", "http://localhost:3000", "https://localhost:8080"] {
            assert!(!with("origin", origin), "{origin}");
        }
        assert!(!with("x-forwarded-for", "10.0.0.1") && !with("forwarded", "for=10.0.0.1"));
        assert!(!with("sec-fetch-site", "cross-site") && !with("sec-fetch-site", "same-site"));
    }
}
