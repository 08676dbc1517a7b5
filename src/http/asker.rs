//! Who asks: the guard before every route of the API.
//!
//! There are no keys yet. So the API is open where only this machine reaches it: the listener's address is a loopback
//! one, the request names a loopback host (a page cannot reach it by a name that was bound to 127.0.0.1), and no
//! browser says that a page of another origin sent it. Who passes is the operator.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use longshore_backbone::wire::api::{ApiError, Code};

use super::problem::problem;

/// Refuses whom the module's head does not name.
pub(super) async fn admit(State(address): State<SocketAddr>, request: Request, next: Next) -> Response {
    match may_ask(address, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(reason) => problem(ApiError::new(Code::Forbidden, reason)),
    }
}

fn may_ask(address: SocketAddr, headers: &HeaderMap) -> Result<(), &'static str> {
    if !address.ip().is_loopback() {
        return Err("the API over HTTP is served on loopback addresses alone: http.listen names another");
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_loopback(host) {
        return Err("Host: is no loopback name, such as localhost or 127.0.0.1");
    }
    if ["forwarded", "x-forwarded-for", "x-real-ip"].iter().any(|name| headers.contains_key(*name)) {
        return Err("it came by a proxy, each of whose clients would be the operator");
    }
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    if origin.is_some_and(|origin| origin.strip_prefix("http://") != Some(host)) {
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
        may_ask(address.parse().unwrap(), &headers).is_ok()
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
        assert!(!may("0.0.0.0:8080", &[("host", "localhost:8080")]), "others reach it, too");
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
