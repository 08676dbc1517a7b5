//! Where a node is seen beside NATS: HTTP, traces, and the files of the audit.

use std::path::PathBuf;

use super::entries::http::{HTTP, JWT, TLS};
use super::entries::{AUDIT, TELEMETRY};
use super::kind::Text;
use super::listen::{Http, JwtSettings, Listen, TlsFiles, TraceSettings, jwk_set};
use super::own_kinds::Auth;
use super::problem::Problem;
use super::schema::Entry;
use super::section::Section;

pub(crate) fn http(section: &Section<'_>) -> Http {
    let listen = match section.get(&HTTP.listen).0 {
        addresses if addresses.is_empty() => Listen::Off,
        addresses if section.node(HTTP.listen.name).is_some() => Listen::At(addresses),
        addresses => Listen::AtOrFree(addresses[0]),
    };
    let tls = section.table("tls");
    let file = |entry: &Entry<Option<Text>>| tls.get(entry).map(|text| PathBuf::from(text.0));
    Http {
        listen,
        auth: section.get(&HTTP.auth),
        base_path: section.get(&HTTP.base_path).map(|path| path.0).unwrap_or_default(),
        cors_origins: section.get(&HTTP.cors_origins).into_iter().map(|origin| origin.0).collect(),
        environment: section.get(&HTTP.environment).map(|text| text.0),
        environment_color: section.get(&HTTP.environment_color).map(|text| text.0),
        trace_url: section.get(&HTTP.trace_url).map(|url| url.0),
        max_body: usize::try_from(section.get(&HTTP.max_body).0).unwrap_or(usize::MAX),
        metrics_auth: section.get(&HTTP.metrics_auth),
        tls: file(&TLS.cert).zip(file(&TLS.key)).map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca: file(&TLS.client_ca),
        }),
        jwt: jwt(section),
    }
}

fn jwt(http: &Section<'_>) -> Option<JwtSettings> {
    let section = http.table("jwt");
    Some(JwtSettings {
        url: section.get(&JWT.jwks_url).map(|url| url.0),
        file: jwks_file(&section),
        issuer: section.get(&JWT.issuer)?.0,
        audience: section.get(&JWT.audience)?.0,
        algorithms: section.get(&JWT.algorithms).into_iter().map(|algorithm| algorithm.0).collect(),
        tenant_claim: section.get(&JWT.tenant_claim).0,
        scope_claim: section.get(&JWT.scope_claim).0,
    })
}

/// Beside the configuration file, as other files that it names.
fn jwks_file(jwt: &Section<'_>) -> Option<PathBuf> {
    let file = jwt.get(&JWT.jwks_file)?;
    jwt.origin(JWT.jwks_file.name).map(|(_, origin)| origin.beside(&file.0))
}

pub(crate) fn traces(section: &Section<'_>) -> TraceSettings {
    TraceSettings {
        endpoint: section.get(&TELEMETRY.endpoint).map(|collector| collector.0),
        protocol: section.get(&TELEMETRY.protocol),
        service_name: section.get(&TELEMETRY.service_name).map(|text| text.0),
        sample_ratio: section.get(&TELEMETRY.sample_ratio),
    }
}

/// Settings of tokens that need another one.
pub(crate) fn incomplete_jwt(http: &Section<'_>) -> Vec<Problem> {
    let jwt = http.table("jwt");
    if jwt.tree.is_none() {
        return Vec::new();
    }
    let has = |name: &str| jwt.node(name).is_some();
    let problem = |name: &'static str, reason: &str| jwt.problem(name, reason.to_owned());
    let mut problems = Vec::new();
    if !has(JWT.jwks_file.name) && !has(JWT.jwks_url.name) {
        problems.push(problem(JWT.jwks_url.name, "is missing, and jwks_file, too"));
    }
    let needed = [JWT.issuer.name, JWT.audience.name].into_iter().filter(|name| !has(name));
    problems.extend(needed.map(|name| problem(name, "is missing: a token for others must not count")));
    // Beside a URL it is only for the time until that has answered.
    if let Some(file) = jwks_file(&jwt).filter(|_| !has(JWT.jwks_url.name)) {
        let text = std::fs::read(&file).map_err(|error| format!("cannot be read: {error}"));
        let keys = text.and_then(|text| jwk_set(&text));
        problems.extend(keys.err().map(|reason| problem(JWT.jwks_file.name, &reason)));
    }
    problems
}

/// Files of TLS that need another one, or cannot be used.
pub(crate) fn wrong_tls(http: &Section<'_>) -> Vec<Problem> {
    let tls = http.table("tls");
    let is_set = |entry: &Entry<Option<Text>>| tls.get(entry).is_some();
    let has = [&TLS.cert, &TLS.key, &TLS.client_ca].map(is_set);
    match has {
        [false, false, false] => Vec::new(),
        [true, true, _] => unusable_tls(http, &tls),
        [false, ..] => vec![tls.problem(TLS.cert.name, "is missing: TLS needs a certificate".to_owned())],
        _ => vec![tls.problem(TLS.key.name, "is missing: TLS needs the certificate's key".to_owned())],
    }
}

#[cfg(feature = "http")]
fn unusable_tls(section: &Section<'_>, tls: &Section<'_>) -> Vec<Problem> {
    let Http { listen, tls: files, .. } = http(section);
    let Some(files) = files.filter(|_| listen != Listen::Off) else { return Vec::new() };
    let unreadable = |entry: &'static Entry<Option<Text>>| {
        let file = tls.get(entry)?.0;
        let error = std::fs::File::open(&file).err()?;
        Some(tls.problem(entry.name, format!("{file}: {error}")))
    };
    let unreadable: Vec<Problem> = [&TLS.cert, &TLS.key, &TLS.client_ca].into_iter().filter_map(unreadable).collect();
    if !unreadable.is_empty() {
        return unreadable;
    }
    let Err(error) = crate::http::check(&files) else { return Vec::new() };
    let name = match &error.file {
        file if *file == files.cert => TLS.cert.name,
        file if *file == files.key => TLS.key.name,
        _ => TLS.client_ca.name,
    };
    vec![tls.problem(name, error.to_string())]
}

#[cfg(not(feature = "http"))]
fn unusable_tls(_: &Section<'_>, _: &Section<'_>) -> Vec<Problem> {
    Vec::new()
}

/// An API that others could ask without a key is no oversight, but said.
pub(crate) fn open(section: &Section<'_>) -> Option<Problem> {
    let addresses = section.get(&HTTP.listen).0;
    let address = addresses.iter().find(|address| !address.ip().is_loopback())?;
    let is_open = section.get(&HTTP.auth) == Auth::Off && !section.get(&HTTP.allow_open);
    let reason = format!(
        "{address} is reached by other machines, and every client would be the operator: set http.auth = \"keys\", a \
         loopback address, or http.allow_open = true"
    );
    is_open.then(|| section.problem(HTTP.listen.name, reason))
}

/// The files that the audit or the event log is written to as well, if `path` is set.
pub(crate) fn files<F>(
    section: &Section<'_>,
    path: &Entry<Option<Text>>,
    new: impl FnOnce(String, u64, u32) -> F,
) -> Option<F> {
    Some(new(section.get(path)?.0, section.get(&AUDIT.file_max_bytes).0, section.get(&AUDIT.files)))
}
