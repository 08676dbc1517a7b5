//! Which addresses a node may call on somebody else's behalf: globally routable ones, and those that an allow list has.
//!
//! A name is resolved once, and each address that it has is judged; the caller dials one of those and no other, so a
//! name that resolves to something else a moment later leads nowhere. One judged address in an answer that has refused
//! ones too does not save it: such a name is built to be tried again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::Uri;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Why an address is not called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0}")]
    Url(&'static str),
    #[error("the name {0:?} cannot be resolved")]
    Unknown(String),
    #[error("{} not globally routable, and is not on the allow list", which_is(.host, .address))]
    Address { host: String, address: IpAddr },
}

/// Addresses and hosts that may be called beyond the globally routable ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Allow {
    networks: Vec<IpNet>,
    hosts: Vec<String>,
}

impl Allow {
    /// Reads a list: networks such as `10.0.0.0/8`, addresses, and host names.
    pub(crate) fn read<'e>(entries: impl IntoIterator<Item = &'e str>) -> Result<Self, String> {
        let mut allow = Self::default();
        for entry in entries {
            if let Ok(network) = entry.parse::<IpNet>() {
                allow.networks.push(network.trunc());
            } else if let Ok(address) = bare(entry).parse::<IpAddr>() {
                allow.networks.push(IpNet::from(address));
            } else if is_host(entry) {
                allow.hosts.push(plain(entry));
            } else {
                return Err(format!(
                    "{entry:?} is neither a network such as 10.0.0.0/8, nor an address, nor a host name"
                ));
            }
        }
        Ok(allow)
    }

    /// Judges an address that a host has.
    pub(crate) fn check(&self, host: &str, address: IpAddr) -> Result<(), Refused> {
        let canonical = address.to_canonical();
        let is_allowed = is_global(canonical)
            || self.networks.iter().any(|network| network.contains(&canonical))
            || self.hosts.contains(&plain(host));
        if is_allowed { Ok(()) } else { Err(Refused::Address { host: host.to_owned(), address }) }
    }

    /// Judges a URL as far as that is possible without asking for the address of its name.
    pub(crate) fn check_url(&self, url: &Uri) -> Result<(), Refused> {
        let (host, _) = target(url)?;
        bare(host).parse::<IpAddr>().map_or(Ok(()), |address| self.check(host, address))
    }

    /// The addresses under which a URL may be called, each of them judged: at least one.
    pub(crate) async fn resolve(&self, url: &Uri) -> Result<Vec<SocketAddr>, Refused> {
        let (host, port) = target(url)?;
        let addresses: Vec<SocketAddr> = match bare(host).parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => {
                let found = tokio::net::lookup_host((host, port)).await;
                found.map_err(|_| Refused::Unknown(host.to_owned()))?.collect()
            }
        };
        addresses.iter().try_for_each(|address| self.check(host, address.ip()))?;
        if addresses.is_empty() { Err(Refused::Unknown(host.to_owned())) } else { Ok(addresses) }
    }
}

/// Host and port of a URL that can be called: of http or https, without a user, not at port 0.
pub(crate) fn target(url: &Uri) -> Result<(&str, u16), Refused> {
    let standard = match url.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return Err(Refused::Url("is not a URL that begins with http:// or https://")),
    };
    let authority = url.authority().ok_or(Refused::Url("has no host"))?;
    if authority.as_str().contains('@') {
        return Err(Refused::Url("has a user or password"));
    }
    if url.host().is_none_or(str::is_empty) {
        return Err(Refused::Url("has no host"));
    }
    // A port that is no number, or too large, is left out by `port_u16`; it is not the standard one all the same.
    let rest = authority.as_str().trim_start_matches(authority.host());
    let port = match rest.strip_prefix(':') {
        None => standard,
        Some(port) => port.parse().map_err(|_| Refused::Url("has no valid port"))?,
    };
    if port == 0 { Err(Refused::Url("has port 0")) } else { Ok((authority.host(), port)) }
}

/// A host and, if that is another word, its address.
fn which_is(host: &str, address: &IpAddr) -> String {
    match bare(host).parse() == Ok(*address) {
        true => format!("{host} is"),
        false => format!("{host} is {address}, which is"),
    }
}

/// An IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A host name as it is compared.
fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    text.len() <= 253 && text.trim_end_matches('.').split('.').all(is_label)
}

/// Networks of IPv4 that are not globally routable, after the IANA registry of special-purpose addresses.
const NOT_GLOBAL: [Ipv4Net; 15] = [
    net(0, 0, 0, 8),
    net(10, 0, 0, 8),
    net(100, 64, 0, 10),
    net(127, 0, 0, 8),
    net(169, 254, 0, 16),
    net(172, 16, 0, 12),
    net(192, 0, 0, 24),
    net(192, 0, 2, 24),
    net(192, 88, 99, 24),
    net(192, 168, 0, 16),
    net(198, 18, 0, 15),
    net(198, 51, 100, 24),
    net(203, 0, 113, 24),
    net(224, 0, 0, 4), // multicast
    net(240, 0, 0, 4), // reserved, broadcast
];

const fn net(a: u8, b: u8, c: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), bits)
}

const fn net6(first: u16, second: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0), bits)
}

/// Global unicast; everything else of IPv6 is local, multicast or not given out.
const GLOBAL6: Ipv6Net = net6(0x2000, 0, 3);
/// Within it: protocol assignments (Teredo, ORCHID, benchmarking) and documentation.
const NOT_GLOBAL6: [Ipv6Net; 3] = [net6(0x2001, 0, 23), net6(0x2001, 0xdb8, 32), net6(0x3fff, 0, 20)];
/// Addresses that lead to an IPv4 address: by NAT64, in the last four bytes; by 6to4, behind the first two.
const NAT64: Ipv6Net = net6(0x64, 0xff9b, 96);
const SIX_TO_FOUR: Ipv6Net = net6(0x2002, 0, 16);

/// Whether an address is globally routable; one that leads to an IPv4 address, if that one is.
fn is_global(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !NOT_GLOBAL.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            let bytes = address.octets();
            let inner = |at: usize| IpAddr::from([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            if NAT64.contains(&address) {
                return is_global(inner(12));
            }
            if SIX_TO_FOUR.contains(&address) {
                return is_global(inner(2));
            }
            GLOBAL6.contains(&address) && !NOT_GLOBAL6.iter().any(|network| network.contains(&address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row each: a URL, and whether it may be called.
    const TABLE: [(&str, bool); 62] = [
        ("http://8.8.8.8/", true),
        ("https://1.1.1.1:8443/x?y", true),
        ("http://100.63.255.255/", true),
        ("http://100.128.0.0/", true),
        ("http://172.15.255.255/", true),
        ("http://172.32.0.0/", true),
        ("http://192.0.1.1/", true),
        ("http://198.17.255.255/", true),
        ("http://198.20.0.0/", true),
        ("http://223.255.255.255/", true),
        ("http://0.0.0.0/", false),
        ("http://0.1.2.3/", false),
        ("http://10.0.0.1/", false),
        ("http://10.255.255.255/", false),
        ("http://100.64.0.1/", false),
        ("http://100.127.255.255/", false),
        ("http://127.0.0.1/", false),
        ("http://127.255.0.9:8080/", false),
        ("http://169.254.169.254/latest/meta-data", false),
        ("http://172.16.0.1/", false),
        ("http://172.31.255.255/", false),
        ("http://192.0.0.1/", false),
        ("http://192.0.0.170/", false),
        ("http://192.0.2.1/", false),
        ("http://192.88.99.1/", false),
        ("http://192.168.1.1/", false),
        ("http://198.18.0.1/", false),
        ("http://198.19.255.255/", false),
        ("http://198.51.100.7/", false),
        ("http://203.0.113.9/", false),
        ("http://224.0.0.1/", false),
        ("http://239.255.255.255/", false),
        ("http://240.0.0.1/", false),
        ("http://255.255.255.255/", false),
        ("http://[2606:4700::1111]/", true),
        ("http://[2a00:1450::1]:8080/", true),
        ("http://[::]/", false),
        ("http://[::1]/", false),
        ("http://[::7f00:1]/", false),
        ("http://[::ffff:127.0.0.1]/", false),
        ("http://[::ffff:10.0.0.1]/", false),
        ("http://[::ffff:8.8.8.8]/", true),
        ("http://[64:ff9b::7f00:1]/", false),
        ("http://[64:ff9b::a9fe:a9fe]/", false),
        ("http://[64:ff9b::808:808]/", true),
        ("http://[64:ff9b:1::808:808]/", false),
        ("http://[2002:7f00:1::]/", false),
        ("http://[2002:c0a8:101::]/", false),
        ("http://[2002:808:808::1]/", true),
        ("http://[2001::1]/", false),
        ("http://[2001:db8::1]/", false),
        ("http://[3fff::1]/", false),
        ("http://[fc00::1]/", false),
        ("http://[fd12:3456::1]/", false),
        ("http://[fe80::1]/", false),
        ("http://[fec0::1]/", false),
        ("http://[ff02::1]/", false),
        ("http://[5f00::1]/", false),
        ("http://8.8.8.8:0/", false),
        ("http://8.8.8.8:70000/", false),
        ("http://user:secret@8.8.8.8/", false),
        ("ftp://8.8.8.8/", false),
    ];

    async fn may(allow: &Allow, url: &str) -> bool {
        let Ok(url) = url.parse::<Uri>() else { return false };
        allow.resolve(&url).await.is_ok()
    }

    #[tokio::test]
    async fn only_globally_routable_addresses_may_be_called() {
        for (url, expected) in TABLE {
            assert_eq!(may(&Allow::default(), url).await, expected, "{url}");
        }
    }

    /// Names go through the resolver of the machine, which reads numbers in many forms.
    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        for url in [
            "http://localhost/",
            "http://LOCALHOST:8080/",
            "http://LOCALHOST./",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://127.1/",
            "http://0177.0.0.1/",
            "http://0/",
            "http://no-such-host.invalid/",
        ] {
            assert!(!may(&Allow::default(), url).await, "{url}");
        }
    }

    #[tokio::test]
    async fn the_allow_list_has_networks_addresses_and_hosts() {
        let allow = Allow::read(["127.0.0.0/8", "10.1.2.3", "fd00::/8", "::1", "LocalHost"]).unwrap();
        for url in
            ["http://127.0.0.1:9/", "http://10.1.2.3/", "http://[fd00::9]/", "http://[::1]/", "http://LOCALHOST/"]
        {
            assert!(may(&allow, url).await, "{url}");
        }
        assert!(may(&allow, "http://[::ffff:127.0.0.1]/").await, "it is that address");
        for url in ["http://10.1.2.4/", "http://192.168.0.1/", "http://127.0.0.1:0/", "http://169.254.169.254/"] {
            assert!(!may(&allow, url).await, "{url}");
        }
        let by_name = Allow::read(["hooks.internal"]).unwrap();
        assert!(by_name.check("Hooks.Internal.", IpAddr::from([10, 0, 0, 1])).is_ok());
        assert!(
            by_name.check("other.internal", IpAddr::from([10, 0, 0, 1])).is_err(),
            "another host there is not meant"
        );
        for wrong in ["", "10.0.0.0/33", "http://a", "a b", "a..b", "*.internal"] {
            assert!(Allow::read([wrong]).unwrap_err().contains("is neither"), "{wrong:?}");
        }
    }
}
