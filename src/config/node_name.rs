//! The default name of a node: the machine's name and some random letters, since one machine may run several nodes.

use rand::RngExt;

/// Enough of the machine's name to recognize it; the rest of a token's 64 bytes is for the letters.
const HOST: usize = 50;

/// A name such as `web-7-k3xq9a`.
pub(crate) fn make() -> String {
    let mut random = rand::rng();
    let letters: String =
        (0..6).map(|_| char::from(b"abcdefghijkmnpqrstuvwxyz23456789"[random.random_range(0..32)])).collect();
    from(&rustix::system::uname().nodename().to_string_lossy(), &letters)
}

fn from(host: &str, letters: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let host: String = host.chars().map(allowed).take(HOST).collect();
    match host.trim_matches(['-', '_']) {
        "" => format!("node-{letters}"),
        host => format!("{host}-{letters}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::Queue;

    #[test]
    fn every_machines_name_becomes_a_token() {
        assert_eq!(from("web-7.example.org", "abc"), "web-7-example-org-abc");
        assert_eq!(from("_über", "abc"), "ber-abc");
        assert_eq!(from("…", "abc"), "node-abc");
        assert!(Queue::parse(&from(&"x".repeat(300), "abcdef")).is_ok());
        assert!(Queue::parse(&make()).is_ok() && make() != make());
    }
}
