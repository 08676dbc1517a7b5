//! Tokens of an identity provider count as its keys, and no others do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use longshore_harness::{Node, World};
use rcgen::{KeyPair, PublicKeyData as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::gateway::head_and_body;
use crate::world;

/// A key of the provider.
struct Key {
    pair: KeyPair,
    kid: &'static str,
}

impl Key {
    fn new(kid: &'static str) -> Self {
        Self { pair: KeyPair::generate().unwrap(), kid }
    }

    fn signs(&self) -> EncodingKey {
        EncodingKey::from_ec_der(&self.pair.serialize_der())
    }

    fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.signs(), Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(self.kid.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    fn token(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.kid.to_owned()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.signs()).unwrap()
    }
}

fn in_seconds(seconds: i64) -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap() + seconds
}

fn claims() -> Value {
    json!({"iss": "https://login.example", "aud": "longshore", "exp": in_seconds(600), "sub": "ada", "tenant": "acme",
        "scope": "openid read submit"})
}

/// The claims with some of them replaced; `null` leaves one out.
fn with(changes: Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

async fn node(world: &World, keys: &str) -> Node {
    let jwt = format!("{keys}\nissuer = 'https://login.example'\naudience = 'longshore'");
    world.node().with("http", "listen = '127.0.0.1:0'\nauth = 'keys'").with("http.jwt", &jwt).start().await
}

fn write(file: &Path, keys: &[&Key]) {
    let mut keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    keys.push(json!({"kty": "of later", "kid": "x"}));
    std::fs::write(file, json!({"keys": keys}).to_string()).unwrap();
}

fn status(node: &Node, path: &str, token: &str, with: &[&str]) -> u16 {
    let bearer = format!("Authorization: Bearer {token}");
    let (head, _) = head_and_body(node, path, &[&["-H", &bearer], with].concat());
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// A token asks as its tenant within its scopes; one that is forged, over, for others or by another way of signing is
/// refused as any wrong key is.
#[tokio::test]
async fn a_token_counts_only_if_it_is_the_providers_for_us_and_in_time() {
    let world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let (key, other) = (Key::new("k1"), Key::new("k1"));
    write(&file, &[&key]);
    let node = node(&world, &format!("jwks_file = '{}'", file.display())).await;
    let ask = |token: &str| status(&node, "/v1/runs", token, &[]);

    let good = key.token(&claims());
    assert_eq!(ask(&good), 200);
    assert_eq!(status(&node, "/v1/runs?tenant=globex", &good, &[]), 403);
    assert_eq!(status(&node, "/v1/runs/no/cancel", &good, &["-X", "POST"]), 403, "it lacks operate");
    assert_eq!(status(&node, "/v1/queues/main/pause", &good, &["-X", "POST"]), 403, "the operator's");
    let list = with(json!({"aud": ["a", "longshore"], "scope": ["operate"], "tenant": "_all"}));
    let operator = key.token(&list);
    assert_eq!(status(&node, "/v1/queues/main/pause", &operator, &["-X", "POST"]), 200);
    let reads = format!("Authorization: Bearer {}", key.token(&with(json!({"tenant": "_all"}))));
    let (_, audit) = head_and_body(&node, "/v1/audit?tenant=_all", &["-H", &reads]);
    assert!(audit.contains(r#""by":"jwt:ada""#), "{audit}");

    let wrong = [
        json!({"exp": in_seconds(-120)}),
        json!({"exp": null}),
        json!({"nbf": in_seconds(120)}),
        json!({"aud": "others"}),
        json!({"aud": null}),
        json!({"iss": "https://evil.example"}),
        json!({"iss": null}),
        json!({"tenant": null}),
        json!({"tenant": "a b"}),
        json!({"tenant": 7}),
    ];
    for claims in wrong {
        assert_eq!(ask(&key.token(&with(claims.clone()))), 401, "{claims}");
    }
    let fraction = in_seconds(120) as f64 + 0.5;
    assert_eq!(ask(&key.token(&with(json!({"exp": fraction})))), 200, "RFC 7519: a number, also with a fraction");
    assert_eq!(ask(&key.token(&with(json!({"scope": null})))), 403, "no scope at all");
    assert_eq!(ask(&other.token(&claims())), 401, "another's key of the same id");
    let critical =
        Header { kid: Some("k1".to_owned()), crit: Some(vec!["b64".to_owned()]), ..Header::new(Algorithm::ES256) };
    assert_eq!(ask(&encode(&critical, &claims(), &key.signs()).unwrap()), 401, "what it calls critical is not known");
    // The public key as the secret of HMAC, and no signature at all.
    let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::HS256) };
    let secret = EncodingKey::from_secret(key.pair.der_bytes());
    assert_eq!(ask(&encode(&header, &claims(), &secret).unwrap()), 401);
    let parts: Vec<&str> = good.split('.').collect();
    let none = "eyJhbGciOiJub25lIiwia2lkIjoiazEifQ";
    let broken = [
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], key.token(&list).split('.').nth(1).unwrap(), parts[2]),
        "a.b.c".to_owned(),
        "..".to_owned(),
    ];
    for token in broken {
        assert_eq!(ask(&token), 401, "{token}");
    }
}

/// Keys that the provider changes are read again when a token names an unknown one, and not more often than that.
#[tokio::test]
async fn keys_are_asked_for_when_a_token_names_an_unknown_one() {
    let world = world().await;
    let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", provider.local_addr().unwrap());
    let (key, unknown) = (Key::new("k1"), Key::new("k2"));
    let body = json!({"keys": [key.jwk()]}).to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let serves = tokio::spawn(async move {
        loop {
            let (mut stream, _) = provider.accept().await.unwrap();
            let mut read = [0; 4_096];
            let _ = stream.read(&mut read).await;
            count.fetch_add(1, Ordering::Relaxed);
            let answer =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let node = node(&world, &format!("jwks_url = '{url}'")).await;
    let node = Arc::new(node);
    let ask = |token: String| {
        let node = Arc::clone(&node);
        async move { tokio::task::spawn_blocking(move || status(&node, "/v1/runs", &token, &[])).await.unwrap() }
    };
    assert_eq!(ask(key.token(&claims())).await, 200);
    for _ in 0..5 {
        assert_eq!(ask(unknown.token(&claims())).await, 401);
        assert_eq!(ask(key.token(&claims())).await, 200);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1, "a flood of unknown keys is not passed on");
    serves.abort();
}
