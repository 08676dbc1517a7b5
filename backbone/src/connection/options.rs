//! What the client library is given for a connection: who logs in, and which certificates it trusts and shows.

use async_nats::ConnectOptions;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::connection::address::Login;
use crate::error::{Cause, Error};
use crate::settings::Connection;

/// A login in the address counts where the connection has no credentials of its own.
pub(super) fn of(connection: &Connection, login: Option<Login>) -> Result<ConnectOptions, Error> {
    let unusable = |path: &std::path::Path, source: Cause| Error::File { path: path.display().to_string(), source };
    let mut options = ConnectOptions::new();
    if let Some(path) = &connection.creds {
        let text = std::fs::read_to_string(path).map_err(|error| unusable(path, Box::new(error)))?;
        options = options.credentials(&text).map_err(|error| unusable(path, Box::new(error)))?;
    } else if let Some(path) = &connection.nkey {
        let seed = std::fs::read_to_string(path).map_err(|error| unusable(path, Box::new(error)))?;
        options = options.nkey(seed.trim().to_owned());
    } else if let Some(user) = &connection.user {
        options = options.user_and_password(user.clone(), connection.password.clone().unwrap_or_default());
    } else if let Some(token) = &connection.token {
        options = options.token(token.clone());
    } else if let Some(login) = login {
        options = match login {
            Login::User(user, password) => options.user_and_password(user, password),
            Login::Token(token) => options.token(token),
        };
    }
    // The client names no file that it cannot read.
    for path in [&connection.ca, &connection.cert, &connection.key].into_iter().flatten() {
        std::fs::File::open(path).map_err(|error| unusable(path, Box::new(error)))?;
    }
    if let Some(path) = &connection.ca {
        // Without one the server's certificate would count as that of an unknown authority.
        let first = CertificateDer::pem_file_iter(path).map(|mut all| all.next());
        if first.map_err(|error| unusable(path, Box::new(error)))?.is_none() {
            return Err(unusable(path, "it holds no certificate".into()));
        }
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let (Some(cert), Some(key)) = (&connection.cert, &connection.key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    if let Some(prefix) = &connection.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_authorities_without_any_is_refused() {
        let ca = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into());
        let refused = of(&Connection { ca, ..Connection::to("tls://host") }, None);
        let Err(error @ Error::File { .. }) = refused else { panic!("it holds no certificate") };
        assert!(error.with_causes().ends_with("Cargo.toml: it holds no certificate"), "{error}");
    }
}
