//! HTTP is served at every address that is set, behind a proxy, with TLS, and to pages of the origins that are named.

use std::path::Path;
use std::process::Command;

use longshore_harness::Node;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;

use crate::gateway::head_and_body;
use crate::gateway_keys::key;
use crate::world;

const JOB: [&str; 4] = ["-H", "Content-Type: application/json", "-d", r#"{"type":"echo","payload":1}"#];

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

/// Whether the proxy takes the base path away or not: links and cookies have it.
#[tokio::test]
async fn a_node_is_served_under_a_base_path() {
    let world = world().await;
    let http = "listen = '127.0.0.1:0'\nauth = 'keys'\nbase_path = '/tools/jobs'";
    let node = world.node().with("http", http).start().await;
    let key = key(&world, "default", "submit,read");
    let bearer = format!("Authorization: Bearer {key}");
    let with_key = |path: &str, with: &[&str]| head_and_body(&node, path, &[&["-H", &bearer], with].concat()).0;
    for under in ["/tools/jobs", ""] {
        let head = with_key(&format!("{under}/v1/jobs"), &JOB);
        assert_eq!(status(&head), 201, "{head}");
        assert!(header(&head, "location").unwrap().starts_with("/tools/jobs/v1/runs/"), "{head}");
        let head = with_key(&format!("{under}/v1/runs?limit=1&type=echo"), &[]);
        let next = header(&head, "link");
        assert!(next.is_none_or(|next| next.starts_with("</tools/jobs/v1/runs?limit=1&type=echo&cursor=")), "{head}");
        assert_eq!(status(&head_and_body(&node, &format!("{under}/readyz"), &[]).0), 200);
    }
    assert_eq!(header(&with_key("/tools/jobs", &[]), "location"), Some("/tools/jobs/"));
    assert_eq!(status(&with_key("/tools/jobsx/v1/runs", &[])), 404);
    let log_in = format!(r#"{{"key":"{key}"}}"#);
    let (head, _) = head_and_body(&node, "/tools/jobs/v1/session", &[JOB[0], JOB[1], "-d", &log_in]);
    assert!(header(&head, "set-cookie").unwrap().contains("; Path=/tools/jobs/; "), "{head}");
}

/// Pages of a named origin may ask, others may not.
#[tokio::test]
async fn pages_of_named_origins_may_ask() {
    let world = world().await;
    let http = "listen = '127.0.0.1:0'\ncors_origins = ['https://tools.example']\nmax_body = '1KiB'";
    let node = world.node().with("http", http).start().await;
    let ask = |origin: &str, with: &[&str]| {
        let origin = format!("Origin: {origin}");
        head_and_body(&node, "/v1/jobs", &[&["-H", &origin, "-H", "Sec-Fetch-Site: cross-site"], with].concat()).0
    };
    let question = ["-X", "OPTIONS", "-H", "Access-Control-Request-Method: POST"];
    let named = "https://tools.example";
    let head = ask(named, &[&question[..], &["-H", "Access-Control-Request-Headers: content-type"]].concat());
    assert_eq!((status(&head), header(&head, "access-control-allow-methods")), (204, Some("POST")), "{head}");
    assert_eq!(header(&head, "access-control-allow-headers"), Some("content-type"));
    let head = ask(named, &JOB);
    assert_eq!((status(&head), header(&head, "access-control-allow-origin")), (201, Some(named)), "{head}");
    for other in ["https://tools.example.evil", "null", "http://tools.example"] {
        for with in [&JOB[..], &question] {
            let head = ask(other, with);
            assert_eq!(header(&head, "access-control-allow-origin"), None, "{other}: {head}");
            assert!(with.len() == question.len() || status(&head) == 403, "{other}: {head}");
        }
    }
    let long = format!(r#"{{"type":"echo","payload":"{}"}}"#, "x".repeat(1_024));
    assert_eq!(status(&ask(named, &["-H", "Content-Type: application/json", "-d", &long])), 413, "max_body");
    let echo = r#"{"type":"echo"}"#;
    for lines in [[echo, &long, echo].join("\n"), [echo, &long].join("\n")] {
        let with = ["-H", "Content-Type: application/x-ndjson", "-H", "Origin: https://tools.example", "-d", &lines];
        let (_, answers) = head_and_body(&node, "/v1/jobs", &with);
        let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let codes: Vec<_> = answers.iter().map(|answer| answer["code"].as_u64()).collect();
        assert_eq!(codes, [None, Some(413), None][..lines.lines().count()], "a line that is too long harms no other");
    }
}

/// Several addresses, and metrics for those who read as the operator.
#[tokio::test]
async fn a_node_listens_at_several_addresses() {
    let world = world().await;
    let http = "listen = ['127.0.0.1:0', '127.0.0.2:0']\nauth = 'keys'\nmetrics_auth = true";
    let node = world.node().with("http", http).start().await;
    let line = crate::logged(node.log(), "127.0.0.2:").await;
    let (_, address) = line.split_once("127.0.0.2:").unwrap();
    let second = format!("127.0.0.2:{}", address.chars().take_while(char::is_ascii_digit).collect::<String>());
    let get = |url: String, with: &[&str]| {
        let output = Command::new("curl").args(["-sS", "-i", "-m", "30"]).args(with).arg(url).output().unwrap();
        status(&String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(get(format!("http://{second}/readyz"), &[]), 200);
    assert_eq!(get(format!("http://{}/readyz", node.http()), &[]), 200);
    let bearer = |tenant: &str, scopes: &str| format!("Authorization: Bearer {}", key(&world, tenant, scopes));
    assert_eq!(get(format!("http://{second}/metrics"), &[]), 401);
    for (tenant, scopes, expected) in [("acme", "read", 403), ("_all", "operate", 403), ("_all", "read", 200)] {
        assert_eq!(
            get(format!("http://{second}/metrics"), &["-H", &bearer(tenant, scopes)]),
            expected,
            "{tenant} {scopes}"
        );
    }
}

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        // By default its name is that of each certificate, which openssl then takes for self-signed.
        params.distinguished_name.push(DnType::CommonName, "a root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate for 127.0.0.1 and its key.
    fn write(&self, folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join(format!("{name}.crt")), cert.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        std::fs::write(folder.join(format!("{name}-ca.crt")), self.0.pem()).unwrap();
    }
}

/// What curl gets with TLS; `None`: no connection.
fn over_tls(node: &Node, folder: &Path, with: &[&str]) -> Option<u16> {
    let url = format!("https://127.0.0.1:{}/healthz", node.http().port());
    let mut curl = Command::new("curl");
    let output = curl.current_dir(folder).args(["-sS", "-i", "-m", "30"]).args(with).arg(url).output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then(|| status(&String::from_utf8(output.stdout).unwrap()))
}

/// Certificates that change are taken over without a new start; broken ones change nothing, but are said.
#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (first, second) = (Ca::new(), Ca::new());
    first.write(at, "a");
    second.write(at, "b");
    let files = |client: &str| {
        let at = at.display();
        format!("cert = '{at}/a.crt'\nkey = '{at}/a.key'\n{client}")
    };
    let node = world.node().with("http", "listen = '127.0.0.1:0'").with("http.tls", &files("")).start().await;
    let (by_first, by_second) = (["--cacert", "a-ca.crt"], ["--cacert", "b-ca.crt"]);
    assert_eq!(over_tls(&node, at, &by_first), Some(200));
    assert_eq!(over_tls(&node, at, &by_second), None, "another root");

    let key = std::fs::read(at.join("a.key")).unwrap();
    let mark = node.log().mark();
    std::fs::write(at.join("a.key"), "no key").unwrap();
    node.log().seen(mark, |line| line.contains("stays as it was")).await;
    assert_eq!(over_tls(&node, at, &by_first), Some(200), "the former files stay");
    std::fs::write(at.join("a.key"), key).unwrap();
    let mark = node.log().mark();
    std::fs::rename(at.join("b.key"), at.join("a.key")).unwrap();
    std::fs::rename(at.join("b.crt"), at.join("a.crt")).unwrap();
    node.log().seen(mark, |line| line.contains("has its files anew")).await;
    assert_eq!(over_tls(&node, at, &by_second), Some(200));
    assert_eq!(over_tls(&node, at, &by_first), None);
}

/// With `client_ca` a client needs a certificate of it; files that cannot be used stop the start and `config check`.
#[tokio::test]
async fn clients_need_a_certificate_where_it_is_set() {
    let world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    Ca::new().write(at, "a");
    Ca::new().write(at, "client");
    Ca::new().write(at, "other");
    let tls = |entries: &str| entries.replace("AT", &at.display().to_string());
    let check = |entries: &str| {
        let table = format!("{{ {} }}", entries.replace('\n', ", "));
        let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
        command.args(["config", "check"]).env("LONGSHORE_HTTP__TLS", table).output().unwrap()
    };
    let wrong = [
        ("cert = 'AT/a.crt'", "http.tls.key"),
        ("client_ca = 'AT/client-ca.crt'", "http.tls.cert"),
        ("cert = 'AT/no.crt'\nkey = 'AT/a.key'", "no.crt"),
        ("cert = 'AT/a.crt'\nkey = 'AT/client.key'", "a.crt"),
        ("cert = 'AT/a.key'\nkey = 'AT/a.key'", "has no certificate"),
    ];
    for (entries, said) in wrong {
        let node = world.node().with("http", "listen = '127.0.0.1:0'").with("http.tls", &tls(entries));
        let refusal = node.try_start().await.map(drop).unwrap_err().to_string();
        assert!(refusal.contains(said), "{entries}: {refusal}");
        let checked = check(&tls(entries));
        assert!(!checked.status.success(), "{entries}");
        assert!(String::from_utf8_lossy(&checked.stderr).contains(said), "{entries}: {checked:?}");
    }
    let entries = tls("cert = 'AT/a.crt'\nkey = 'AT/a.key'\nclient_ca = 'AT/client-ca.crt'");
    assert!(check(&entries).status.success());
    let node = world.node().with("http", "listen = '127.0.0.1:0'").with("http.tls", &entries).start().await;
    let with = |name: &str| {
        let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
        over_tls(&node, at, &["--cacert", "a-ca.crt", "--cert", &cert, "--key", &key])
    };
    assert_eq!(with("client"), Some(200));
    assert_eq!(with("other"), None, "a certificate of another root");
    assert_eq!(over_tls(&node, at, &["--cacert", "a-ca.crt"]), None, "no certificate");
}
