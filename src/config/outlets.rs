//! Where a node is seen beside NATS: HTTP, and the files of the audit.

use std::path::PathBuf;

use crate::audit_files::{AuditFiles, EventFiles};

use super::entries::{audit as audit_entry, http as http_entry};
use super::kind::Text;
use super::listen::{Auth, Http, JwtSettings, Listen, TlsFiles, jwk_set};
use super::problem::Problem;
use super::raw::Tree;
use super::schema::Entry;
use super::section::{Section, section};

/// How to serve HTTP.
pub(crate) fn http(tree: &Tree) -> Http {
    let section = section(tree, "http");
    let listen = match section.get(&http_entry::HTTP_LISTEN).0 {
        addresses if addresses.is_empty() => Listen::Off,
        addresses if section.node(http_entry::HTTP_LISTEN.name).is_some() => Listen::At(addresses),
        addresses => Listen::AtOrFree(addresses[0]),
    };
    let tls = section.table("tls");
    let file = |entry: &Entry<Option<Text>>| tls.get(entry).map(|text| PathBuf::from(text.0));
    Http {
        listen,
        auth: section.get(&http_entry::HTTP_AUTH),
        base_path: section.get(&http_entry::BASE_PATH).map(|path| path.0).unwrap_or_default(),
        cors_origins: section.get(&http_entry::CORS_ORIGINS).into_iter().map(|origin| origin.0).collect(),
        environment: section.get(&http_entry::ENVIRONMENT).map(|text| text.0),
        environment_color: section.get(&http_entry::ENVIRONMENT_COLOR).map(|text| text.0),
        trace_url: section.get(&http_entry::TRACE_URL).map(|url| url.0),
        max_body: usize::try_from(section.get(&http_entry::MAX_BODY).0).unwrap_or(usize::MAX),
        metrics_auth: section.get(&http_entry::METRICS_AUTH),
        tls: file(&http_entry::CERT).zip(file(&http_entry::KEY)).map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca: file(&http_entry::CLIENT_CA),
        }),
        jwt: jwt(&section),
    }
}

fn jwt(http: &Section<'_>) -> Option<JwtSettings> {
    let section = http.table("jwt");
    Some(JwtSettings {
        url: section.get(&http_entry::JWKS_URL).map(|url| url.0),
        file: section.get(&http_entry::JWKS_FILE).map(|file| file.0.into()),
        issuer: section.get(&http_entry::ISSUER)?.0,
        audience: section.get(&http_entry::AUDIENCE)?.0,
        algorithms: section.get(&http_entry::ALGORITHMS).into_iter().map(|algorithm| algorithm.0).collect(),
        tenant_claim: section.get(&http_entry::TENANT_CLAIM).0,
        scope_claim: section.get(&http_entry::SCOPE_CLAIM).0,
    })
}

/// Settings of tokens that need another one.
pub(crate) fn incomplete_jwt(tree: &Tree) -> Vec<Problem> {
    let section = section(tree, "http");
    let jwt = section.table("jwt");
    if jwt.tree.is_none() {
        return Vec::new();
    }
    let has = |name: &str| jwt.node(name).is_some();
    let problem = |name: &'static str, reason: &str| jwt.problem(name, reason.to_owned());
    let mut problems = Vec::new();
    if !has(http_entry::JWKS_FILE.name) && !has(http_entry::JWKS_URL.name) {
        problems.push(problem(http_entry::JWKS_URL.name, "is missing, and jwks_file, too"));
    }
    let needed = [http_entry::ISSUER.name, http_entry::AUDIENCE.name].into_iter().filter(|name| !has(name));
    problems.extend(needed.map(|name| problem(name, "is missing: a token for others must not count")));
    // Beside a URL it is only for the time in which that does not answer.
    if let Some(file) = jwt.get(&http_entry::JWKS_FILE).filter(|_| !has(http_entry::JWKS_URL.name)) {
        let text = std::fs::read(&file.0).map_err(|error| format!("cannot be read: {error}"));
        let keys = text.and_then(|text| jwk_set(&text).map_err(|reason| format!("is no JWK set: {reason}")));
        problems.extend(keys.err().map(|reason| problem(http_entry::JWKS_FILE.name, &reason)));
    }
    problems
}

/// Files of TLS that need another one.
pub(crate) fn incomplete_tls(tree: &Tree) -> Option<Problem> {
    let section = section(tree, "http");
    let tls = section.table("tls");
    let is_set = |entry: &Entry<Option<Text>>| tls.get(entry).is_some();
    let has = [&http_entry::CERT, &http_entry::KEY, &http_entry::CLIENT_CA].map(is_set);
    match has {
        [true, true, _] | [false, false, false] => None,
        [false, ..] => Some(tls.problem(http_entry::CERT.name, "is missing: TLS needs a certificate".to_owned())),
        _ => Some(tls.problem(http_entry::KEY.name, "is missing: TLS needs the certificate's key".to_owned())),
    }
}

/// An API that others could ask without a key is no oversight, but said.
pub(crate) fn open(tree: &Tree) -> Option<Problem> {
    let section = section(tree, "http");
    let addresses = section.get(&http_entry::HTTP_LISTEN).0;
    let address = addresses.iter().find(|address| !address.ip().is_loopback())?;
    let is_open = section.get(&http_entry::HTTP_AUTH) == Auth::Off && !section.get(&http_entry::HTTP_ALLOW_OPEN);
    let reason = format!(
        "{address} is reached by other machines, and every client would be the operator: set http.auth = \"keys\", a \
         loopback address, or http.allow_open = true"
    );
    is_open.then(|| section.problem(http_entry::HTTP_LISTEN.name, reason))
}

/// The files that the audit is written to as well.
pub(crate) fn audit_files(tree: &Tree) -> Option<AuditFiles> {
    let section = section(tree, "audit");
    let path = section.get(&audit_entry::FILE)?.0;
    let (max_bytes, files) = (section.get(&audit_entry::FILE_MAX_BYTES).0, section.get(&audit_entry::FILES));
    Some(AuditFiles::new(path, max_bytes, files))
}

/// The files that the event log is written to as well.
pub(crate) fn event_files(tree: &Tree) -> Option<EventFiles> {
    let section = section(tree, "audit");
    let path = section.get(&audit_entry::EVENTS_FILE)?.0;
    let (max_bytes, files) = (section.get(&audit_entry::FILE_MAX_BYTES).0, section.get(&audit_entry::FILES));
    Some(EventFiles::new(path, max_bytes, files))
}
