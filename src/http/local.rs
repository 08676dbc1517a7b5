//! Who may ask as the operator: those on this machine, as the node asks nobody who they are.
//!
//! A listener on any other address than a loopback one answers 403. So is a request whose `Host` is no name of this
//! machine: a page of another site can have its own name resolve to 127.0.0.1, and would read the answer (DNS
//! rebinding).

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use longshore_backbone::wire::api::{ApiError, Code};

use super::problem::problem;

/// Where the node listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access(pub(super) SocketAddr);

/// Passes on what may be asked here.
pub(super) async fn only(State(Access(address)): State<Access>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let refused = |why: &str| problem(ApiError::new(Code::Forbidden, why));
    if !address.ip().is_loopback() {
        return refused("events are served where http.listen is a loopback address, such as 127.0.0.1:8080");
    }
    if !is_local(host) {
        return refused("Host: is no name of this machine, such as localhost");
    }
    next.run(request).await
}

/// Whether a `Host` names this machine.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["", "attacker.example", "attacker.example:8080", "localhost.attacker.example", "10.0.0.1:8080", "[::2]:1"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}
