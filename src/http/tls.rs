//! TLS of the listener: its files, read again when they change.
//!
//! Files that cannot be used stop the start. Later they are said in the log, and the former ones stay.

use std::convert::Infallible;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;

/// How often the files are looked at.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// Why TLS is not to be had by a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct TlsError {
    pub(crate) file: PathBuf,
    reason: String,
}

type Contents = [Vec<u8>; 3];

/// The listener's side of TLS.
pub(super) struct Tls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
}

impl Tls {
    pub(super) fn read(files: &TlsFiles) -> Result<Arc<Self>, TlsError> {
        let current = ArcSwap::from(configuration(files, &contents(files)?)?);
        Ok(Arc::new(Self { files: files.clone(), current }))
    }

    /// For the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Takes over what changes in the files, for ever.
    pub(super) async fn follow(self: Arc<Self>) -> Infallible {
        let mut seen = contents(&self.files);
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            let now = contents(&self.files);
            if now == seen {
                continue;
            }
            match now.clone().and_then(|now| configuration(&self.files, &now)) {
                Ok(configuration) => {
                    self.current.store(configuration);
                    tracing::info!("TLS of HTTP has its files anew");
                }
                Err(error) => tracing::error!("TLS of HTTP stays as it was, its files cannot be used: {error}"),
            }
            seen = now;
        }
    }
}

/// A few KiB: no time is lost over reading them in place.
fn contents(files: &TlsFiles) -> Result<Contents, TlsError> {
    let read = |file: &Path| std::fs::read(file).map_err(|error| refused(file, error));
    let client_ca = files.client_ca.as_deref().map(read).transpose()?;
    Ok([read(&files.cert)?, read(&files.key)?, client_ca.unwrap_or_default()])
}

fn refused(file: &Path, reason: impl Display) -> TlsError {
    TlsError { file: file.to_owned(), reason: reason.to_string() }
}

fn configuration(files: &TlsFiles, [cert, key, client_ca]: &Contents) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.cert, cert)?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| refused(&files.key, format!("has no private key: {error}")))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let wrong_cert = |error: rustls::Error| refused(&files.cert, error);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(wrong_cert)?;
    let builder = match &files.client_ca {
        Some(file) => builder.with_client_cert_verifier(verifier(file, client_ca, provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut built = builder.with_single_cert(chain, key).map_err(wrong_cert)?;
    built.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(built))
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let read = read.map_err(|error| refused(file, error))?;
    if read.is_empty() { Err(refused(file, "has no certificate")) } else { Ok(read) }
}

fn verifier(file: &Path, pem: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, pem)? {
        roots.add(certificate).map_err(|error| refused(file, error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    verifier.build().map_err(|error| refused(file, error))
}
