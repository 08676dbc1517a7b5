//! Tokens of an identity provider (JWT, RFC 7519) in place of API keys, by its published keys (JWKS, RFC 7517).
//!
//! A token says nothing of how it is to be judged: the algorithm must be one that is set and fits the kind of the key,
//! the key is that of its `kid`; issuer, audience and `exp` must be there and right, and nothing may be critical that
//! is not known here. The keys are read again every five minutes, and for an unknown `kid` at most once a minute, so
//! that a provider may change and withdraw them. A reading is a task of its own, which goes on when the request that
//! began it ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::Full;
use hyper::{Request, Uri};
use jsonwebtoken::jwk::{AlgorithmParameters, CommonParameters, Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use longshore_backbone::wire::api::{ApiError, KeyStatus, OPERATOR, Scope};
use longshore_domain::{Tenant, Timestamp};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{JwtSettings, jwk_set};
use crate::outbound::{Allow, Outbound};

/// How often the keys are read at most, and after a reading that failed.
const READ_EVERY: Duration = Duration::from_secs(60);
const READ_AGAIN: Duration = Duration::from_secs(5);
/// For how long they count before they are read again.
const COUNT_FOR: Duration = Duration::from_secs(300);
/// How long the provider may take to answer, and bytes of its keys.
const WITHIN: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 1 << 20;
/// How far its clock may be wrong, in seconds.
const LEEWAY: u64 = 30;
/// Characters of a name.
const NAME: usize = 64;

#[derive(Debug)]
pub(super) struct Jwt {
    settings: JwtSettings,
    algorithms: Vec<Algorithm>,
    client: Outbound,
    keys: watch::Sender<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    set: JwkSet,
    /// When the last reading ended.
    read_at: Option<Instant>,
    /// It failed: what is not found may be there.
    are_unread: bool,
    /// The next reading goes on.
    are_being_read: bool,
    /// They are those of the URL: the file has only older ones.
    are_of_url: bool,
}

impl Keys {
    /// The key of this id, or the only one if a token names none.
    fn find(&self, kid: Option<&str>) -> Option<&Jwk> {
        match (kid, self.set.keys.as_slice()) {
            (Some(kid), _) => self.set.find(kid),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    fn are_older_than(&self, age: Duration) -> bool {
        self.read_at.is_none_or(|at| at.elapsed() >= age)
    }
}

impl Jwt {
    /// The keys are read when the first token comes.
    pub(super) fn new(settings: &JwtSettings) -> Arc<Self> {
        let url = settings.url.as_ref().and_then(|url| url.parse::<Uri>().ok());
        let host = url.and_then(|url| url.host().map(str::to_owned));
        // Who runs the node has named it.
        let allow = Allow::read(host.as_deref()).unwrap_or_default();
        let algorithms = settings.algorithms.iter().filter_map(|name| name.parse().ok()).collect();
        let settings = settings.clone();
        Arc::new(Self { settings, algorithms, client: Outbound::new(allow), keys: watch::Sender::default() })
    }

    /// Whether a text has the form of a token.
    pub(super) fn is_one(text: &str) -> bool {
        text.split('.').count() == 3
    }

    /// Who has this token; `None`: it does not count. 503 if the keys cannot be read.
    pub(super) async fn holder(self: &Arc<Self>, token: &str) -> Result<Option<KeyStatus>, ApiError> {
        let Ok(header) = decode_header(token) else { return Ok(None) };
        // RFC 7515, 4.1.11: nothing is known here that could be.
        if header.crit.is_some() {
            return Ok(None);
        }
        let Some(key) = self.key(header.kid.as_deref()).await? else { return Ok(None) };
        let holder = self.judge(token, &key);
        Ok(holder.inspect_err(|reason| tracing::debug!("a token does not count: {reason}")).ok())
    }

    fn judge(&self, token: &str, jwk: &Jwk) -> Result<KeyStatus, String> {
        let family = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa,
            AlgorithmParameters::EllipticCurve(_) => AlgorithmFamily::Ec,
            AlgorithmParameters::OctetKeyPair(_) => AlgorithmFamily::Ed,
            AlgorithmParameters::OctetKey(_) => AlgorithmFamily::Hmac,
            _ => return Err("its key is of no known kind".to_owned()),
        };
        let of_key = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let fits = |algorithm: &Algorithm| {
            algorithm.family() == family && of_key.as_ref().is_none_or(|of_key| *of_key == format!("{algorithm:?}"))
        };
        let algorithms: Vec<Algorithm> = self.algorithms.iter().copied().filter(fits).collect();
        let Some(first) = algorithms.first() else { return Err("no algorithm that is set fits its key".to_owned()) };
        let mut validation = Validation::new(*first);
        validation.algorithms.clone_from(&algorithms);
        validation.set_audience(&[&self.settings.audience]);
        validation.set_issuer(&[&self.settings.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY;
        let key = DecodingKey::from_jwk(jwk).map_err(|error| error.to_string())?;
        let token = decode::<Map<String, Value>>(token, &key, &validation).map_err(|error| error.to_string())?;
        self.holder_of(&token.claims)
    }

    fn holder_of(&self, claims: &Map<String, Value>) -> Result<KeyStatus, String> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let tenant = text(&self.settings.tenant_claim)
            .filter(|tenant| *tenant == OPERATOR || Tenant::parse(tenant).is_ok())
            .ok_or_else(|| format!("its claim {} is no tenant", self.settings.tenant_claim))?;
        let words: Vec<&str> = match claims.get(&self.settings.scope_claim) {
            Some(Value::String(words)) => words.split_ascii_whitespace().collect(),
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        // A provider has scopes for others, too.
        let scopes = words.iter().filter_map(|word| serde_json::from_value::<Scope>((*word).into()).ok());
        let seconds = claims.get("exp").and_then(Value::as_f64).ok_or("its exp is no number")?;
        let name: String = text("sub").unwrap_or("?").replace(char::is_control, " ").chars().take(NAME).collect();
        Ok(KeyStatus {
            created_at: Timestamp::default(),
            expires_at: Some(Timestamp::from_millis((seconds * 1_000.0) as i64)),
            id: name.clone(),
            last_used: None,
            name,
            scopes: scopes.map(Into::into).collect(),
            tenant: tenant.to_owned(),
        })
    }

    /// The key that a token names.
    async fn key(self: &Arc<Self>, kid: Option<&str>) -> Result<Option<Jwk>, ApiError> {
        // One reads, and others wait for it unless their key is there and not too old.
        let begins = self.keys.send_if_modified(|keys| {
            let good_for = match (keys.find(kid), keys.are_unread) {
                (None, true) => READ_AGAIN,
                (Some(_), false) => COUNT_FOR,
                _ => READ_EVERY,
            };
            let begins = !keys.are_being_read && keys.are_older_than(good_for);
            keys.are_being_read |= begins;
            begins
        });
        if begins {
            tokio::spawn(Arc::clone(self).read_again());
        }
        let may_go_on =
            |keys: &Keys| !keys.are_being_read || !keys.are_older_than(COUNT_FOR) && keys.find(kid).is_some();
        let mut seen = self.keys.subscribe();
        let unread = || ApiError::unavailable("the keys of the identity provider cannot be read");
        let keys = seen.wait_for(may_go_on).await.map_err(|_| unread())?;
        // Those that were read before count on.
        match keys.find(kid) {
            None if keys.are_unread => Err(unread()),
            found => Ok(found.cloned()),
        }
    }

    /// Reads them, and has those go on that wait for it.
    async fn read_again(self: Arc<Self>) {
        let had_url = self.keys.borrow().are_of_url;
        let read = AssertUnwindSafe(self.read(had_url)).catch_unwind().await;
        let read = read.unwrap_or_else(|_| Err("the reading panicked".to_owned()));
        self.keys.send_modify(|keys| {
            (keys.read_at, keys.are_being_read, keys.are_unread) = (Some(Instant::now()), false, read.is_err());
            match read {
                Ok((set, of_url)) => (keys.set, keys.are_of_url) = (set, of_url),
                Err(reason) => {
                    tracing::warn!("the keys of the identity provider cannot be read (http.jwt): {reason}");
                }
            }
        });
    }

    /// The keys, and whether they are those of the URL. The file stands in for it until it has answered once.
    async fn read(&self, had_url: bool) -> Result<(JwkSet, bool), String> {
        let of_url = match &self.settings.url {
            Some(url) => self.ask(url).await,
            None => Err("no jwks_url is set".to_owned()),
        };
        let (text, is_of_url) = match (of_url, &self.settings.file) {
            (Err(_), Some(path)) if !had_url => {
                let read = tokio::fs::read(path).await;
                (read.map(Bytes::from).map_err(|error| format!("{}: {error}", path.display()))?, false)
            }
            (of_url, _) => (of_url?, true),
        };
        // Keys of kinds that nobody knows here, and those for other uses, are the provider's for others.
        let keys = jwk_set(&text)?.into_iter().filter_map(|key| serde_json::from_value(key).ok()).filter(verifies);
        Ok((JwkSet { keys: keys.collect() }, is_of_url))
    }

    async fn ask(&self, url: &str) -> Result<Bytes, String> {
        let request = Request::get(url).body(Full::default()).map_err(|error| error.to_string())?;
        let answer = self.client.send(request, WITHIN, MAX_BYTES).await;
        let answer = answer.map_err(|error| format!("{url}: {error}"))?;
        if answer.status == 200 { Ok(answer.body) } else { Err(format!("{url}: status {}", answer.status)) }
    }
}

/// Whether a key is for signatures, as far as it says so (RFC 7517, 4.2 and 4.3).
fn verifies(key: &Jwk) -> bool {
    let CommonParameters { public_key_use, key_operations, .. } = &key.common;
    public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature)
        && key_operations.as_ref().is_none_or(|of| of.contains(&KeyOperations::Verify))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn jwt(file: &Path, url: Option<String>) -> Arc<Jwt> {
        Jwt::new(&JwtSettings {
            file: Some(file.to_owned()),
            url,
            issuer: String::new(),
            audience: String::new(),
            algorithms: Vec::new(),
            tenant_claim: String::new(),
            scope_claim: String::new(),
        })
    }

    fn set(kid: &str) -> String {
        let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        let key = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x});
        serde_json::json!({"keys": [key]}).to_string()
    }

    /// A key that the provider withdraws counts until the keys are read again; while they cannot be read, it counts on.
    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_withdrawn_does_not_count_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jwks.json");
        let write = |kid: &str| std::fs::write(&file, set(kid)).unwrap();
        let jwt = jwt(&file, None);
        let counts = async |kid: &str| jwt.key(Some(kid)).await.map(|key| key.is_some());
        assert_eq!(counts("a").await.unwrap_err().code, 503);
        write("a");
        // Whether it is there is not known until they are read again, which is soon.
        assert_eq!(counts("a").await.unwrap_err().code, 503);
        tokio::time::advance(READ_AGAIN).await;
        assert!(counts("a").await.unwrap());
        std::fs::remove_file(&file).unwrap();
        tokio::time::advance(COUNT_FOR).await;
        assert!(counts("a").await.unwrap(), "they cannot be read");
        write("b");
        tokio::time::advance(COUNT_FOR).await;
        assert!(!counts("a").await.unwrap());
        assert!(counts("b").await.unwrap());

        // Who begins a reading and goes away ends nothing.
        write("c");
        tokio::time::advance(COUNT_FOR).await;
        assert!(jwt.key(Some("b")).now_or_never().is_none(), "the keys are too old");
        assert!(!counts("b").await.unwrap());
        // While a token with an unknown key has them read, others do not wait.
        tokio::time::advance(READ_EVERY).await;
        let mut unknown = Box::pin(counts("d"));
        assert!((&mut unknown).now_or_never().is_none());
        assert!(jwt.key(Some("c")).now_or_never().unwrap().unwrap().is_some());
        assert!(!unknown.await.unwrap());
        // After a reading that failed the next one comes before its time, and nobody waits for it.
        std::fs::remove_file(&file).unwrap();
        tokio::time::advance(COUNT_FOR).await;
        assert!(counts("c").await.unwrap());
        write("d");
        tokio::time::advance(READ_EVERY).await;
        assert!(jwt.key(Some("c")).now_or_never().unwrap().unwrap().is_some());
        jwt.keys.subscribe().wait_for(|keys| !keys.are_being_read).await.unwrap();
        assert!(!counts("c").await.unwrap());
    }

    #[tokio::test]
    async fn only_keys_for_signatures_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jwks.json");
        let more = ["", r#","use":"sig""#, r#","key_ops":["verify"]"#, r#","use":"enc""#, r#","key_ops":["encrypt"]"#];
        for (more, counts) in more.into_iter().zip([true, true, true, false, false]) {
            std::fs::write(&file, set("a").replace(r#","kty""#, &format!(r#"{more},"kty""#))).unwrap();
            let key = jwt(&file, None).key(Some("a")).await.unwrap();
            assert_eq!(key.is_some(), counts, "{more}");
        }
    }

    /// Once the provider has answered, the file's keys do not take the place of its own while it answers no more.
    #[tokio::test]
    async fn the_file_stands_in_for_a_provider_that_has_not_answered_yet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jwks.json");
        std::fs::write(&file, set("of the file")).unwrap();
        let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let jwt = jwt(&file, Some(format!("http://{}/keys", provider.local_addr().unwrap())));
        let answers = tokio::spawn(async move {
            for status in ["503 Service Unavailable", "200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = provider.accept().await.unwrap();
                let mut read = [0; 4_096];
                let _ = stream.read(&mut read).await;
                let (head, body) = (format!("HTTP/1.1 {status}\r\nConnection: close"), set("of the URL"));
                let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        for kid in ["of the file", "of the URL", "of the URL"] {
            Arc::clone(&jwt).read_again().await;
            assert!(jwt.keys.borrow().set.find(kid).is_some(), "{:?}", jwt.keys);
        }
        answers.await.unwrap();
    }
}
