//! Where a node serves HTTP, and to whom, as `[http]` says; and where its traces go, as `[telemetry]` says.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::kind::Protocol;
use super::own_kinds::Auth;

/// How a node serves HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Where.
    pub listen: Listen,
    /// Who may ask.
    pub auth: Auth,
    /// What paths begin with behind a proxy: empty, or `/` and names.
    pub base_path: String,
    /// The origins whose pages may ask, too.
    pub cors_origins: Vec<String>,
    /// What the dashboard calls this installation.
    pub environment: Option<String>,
    /// The colour of that name, as CSS has it.
    pub environment_color: Option<String>,
    /// Where a trace is looked at: `{trace_id}` in it stands for its id.
    pub trace_url: Option<String>,
    /// Most bytes of the body of a request.
    pub max_body: usize,
    /// Whether the metrics need a key.
    pub metrics_auth: bool,
    /// The files of TLS; `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Whose tokens count beside keys.
    pub jwt: Option<JwtSettings>,
}

/// How tokens of an identity provider are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtSettings {
    /// Where its keys are: at this URL.
    pub url: Option<String>,
    /// In this file, if there is no URL or it has not answered yet. There is one of both at least.
    pub file: Option<PathBuf>,
    /// What `iss` must be.
    pub issuer: String,
    /// What `aud` must have.
    pub audience: String,
    /// The algorithms that count.
    pub algorithms: Vec<String>,
    /// The claim that names the tenant.
    pub tenant_claim: String,
    /// The claim that has the scopes.
    pub scope_claim: String,
}

/// The keys of a JWK set (RFC 7517), of whatever kinds.
pub(crate) fn jwk_set(text: &[u8]) -> Result<Vec<serde_json::Value>, String> {
    let mut set: serde_json::Value = serde_json::from_slice(text).map_err(|error| format!("is no JSON: {error}"))?;
    match set.get_mut("keys").map(serde_json::Value::take) {
        Some(serde_json::Value::Array(keys)) => Ok(keys),
        _ => Err("is no JWK set: there is no list \"keys\"".to_owned()),
    }
}

/// The PEM files of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that lead from it to a root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The roots of the certificates that clients must have.
    pub client_ca: Option<PathBuf>,
}

/// The settings of `[telemetry]`. What is absent the environment says, and then OpenTelemetry's defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceSettings {
    /// The collector: a URL, without the path of traces.
    pub endpoint: Option<String>,
    /// How spans are sent.
    pub protocol: Option<Protocol>,
    /// The name of the service in traces.
    pub service_name: Option<String>,
    /// The share of traces that is exported, 0 to 1, of those whose publisher has not decided it.
    pub sample_ratio: Option<f64>,
}

/// Where to serve HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There, as somebody has set it: it is an error if a port is taken.
    At(Vec<SocketAddr>),
    /// There, as nothing is set: at a free port of the same address if the port is taken, so that several nodes start
    /// on one machine without any settings.
    AtOrFree(SocketAddr),
}
