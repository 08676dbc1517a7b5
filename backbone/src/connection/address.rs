//! The addresses of a NATS server as its clients write them: `nats://user:password@host:4222`, `nats://token@host`.
//!
//! The client library ignores the part before the `@`, and its errors show it. So this module removes it: an address
//! that is passed on or shown has neither a name nor a secret in it.

use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Login {
    /// A user and a password, which may be empty.
    User(String, String),
    Token(String),
}

/// The addresses in a list separated by commas, without logins, and their login; an error text if they have two
/// different ones.
pub(crate) fn read(list: &str) -> (Vec<String>, Result<Option<Login>, String>) {
    let (plain, logins): (Vec<String>, Vec<Option<Login>>) = list.split(',').map(|address| one(address.trim())).unzip();
    let mut logins = logins.into_iter().flatten();
    let first = logins.next();
    let login = match logins.any(|other| Some(&other) != first.as_ref()) {
        true => Err("its addresses name two different users; one connection has one".to_owned()),
        false => Ok(first),
    };
    (plain, login)
}

/// The configured addresses, and those that the servers announced, which may be the only ones left.
pub(crate) fn with_announced(mut addresses: Vec<String>, known: &[String]) -> Vec<String> {
    let scheme = addresses.first().and_then(|first| first.split_once("://")).map(|(scheme, _)| scheme.to_owned());
    for host in known {
        let address = scheme.as_ref().map_or_else(|| host.clone(), |scheme| format!("{scheme}://{host}"));
        if address.parse::<async_nats::ServerAddr>().is_ok() && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

fn one(address: &str) -> (String, Option<Login>) {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // Only a WebSocket's address has a path. Elsewhere, or after what cannot be a port, the `/` is part of a password.
    let may_have_path = scheme.starts_with("ws");
    let split = match authority.rsplit_once('@') {
        Some((login, host)) if may_have_path => Some((login, format!("{host}{path}"))),
        None if may_have_path && has_port_or_none(authority) => None,
        _ => rest.rsplit_once('@').map(|(login, host)| (login, host.to_owned())),
    };
    let Some((login, place)) = split else {
        let (host, _) = authority.rsplit_once(':').unwrap_or((authority, ""));
        // A login without a host looks like a host with a port.
        let plain =
            if has_port_or_none(authority) { address.to_owned() } else { format!("{scheme}{separator}{host}:…") };
        return (plain, None);
    };
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let login = match login.split_once(':') {
        Some((user, password)) => Login::User(decoded(user), decoded(password)),
        None => Login::Token(decoded(login)),
    };
    (format!("{scheme}{separator}{place}"), Some(login))
}

fn has_port_or_none(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    authority.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_taken_out_of_an_address() {
        let user = |name: &str, password: &str| Some(Login::User(name.to_owned(), password.to_owned()));
        for (address, plain, login) in [
            ("nats://a:4222", "nats://a:4222", None),
            ("a:4222", "a:4222", None),
            ("nats://ann:secret@a:4222", "nats://a:4222", user("ann", "secret")),
            ("ann:secret@a", "a", user("ann", "secret")),
            ("tls://ann:@[::1]:4222", "tls://[::1]:4222", user("ann", "")),
            ("wss://ann:p%40ss%2Fw%3A@a/path@x", "wss://a/path@x", user("ann", "p@ss/w:")),
            ("nats://ann:with@sign@a", "nats://a", user("ann", "with@sign")),
            ("nats://s3cret@a:1", "nats://a:1", Some(Login::Token("s3cret".to_owned()))),
            ("nats://ann:a/b+c==@a:1", "nats://a:1", user("ann", "a/b+c==")),
            ("ann:a/b@a:1", "a:1", user("ann", "a/b")),
            ("nats://ann:a@b/c@a:1", "nats://a:1", user("ann", "a@b/c")),
            ("wss://ann:a/b@a:1", "wss://a:1", user("ann", "a/b")),
            ("wss://a:1/path@x", "wss://a:1/path@x", None),
            ("nats://[::1]", "nats://[::1]", None),
            // Misspelt ones: whatever becomes of them, no secret is shown.
            ("nats://ann:secret", "nats://ann:…", None),
            ("nats:/ann:secret@a", "a", user("nats", "/ann:secret")),
        ] {
            assert_eq!(one(address), (plain.to_owned(), login), "{address}");
        }
    }

    #[test]
    fn all_addresses_have_one_login() {
        let (plain, login) = read("nats://ann:x@a, nats://b ,nats://ann:x@c");
        assert_eq!(plain, ["nats://a", "nats://b", "nats://c"]);
        assert_eq!(login, Ok(Some(Login::User("ann".to_owned(), "x".to_owned()))));
        let (plain, login) = read("nats://ann:x@a,nats://bob:y@b");
        assert!(plain.join(",") == "nats://a,nats://b" && !login.unwrap_err().contains('x'));
    }
}
