//! One connection to the mail server, and what it says of one e-mail.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lettre::Address;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Response;
use longshore_actors::HandlerError;
use serde::{Deserialize, Serialize};

use super::{Email, MailServer};
use crate::config::own_kinds::Encryption;

/// How long the server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take to say goodbye; the e-mail is handed over by then.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How much of the server's words is kept.
const WORDS: usize = 200;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RefusedRecipient {
    pub(super) to: String,
    pub(super) code: u16,
    pub(super) text: String,
}

pub(super) struct Session(AsyncSmtpConnection);

impl Session {
    /// Connects, encrypts and logs in. Whatever the server says is worth another attempt: it is no fault of an e-mail.
    pub(super) async fn open(server: &MailServer) -> Result<Self, HandlerError> {
        let failed =
            |error: Error| HandlerError::retryable(format!("the mail server {server:?}: {}", answered(&error)));
        let parameters = || {
            if let Some(trusted) = server.trusted.get() {
                return Ok(trusted.clone());
            }
            let read = TlsParameters::new(server.host.clone())?;
            Ok(server.trusted.get_or_init(|| read).clone())
        };
        let tls = if server.tls == Encryption::Tls { Some(parameters().map_err(failed)?) } else { None };
        let (client, address) = (ClientId::default(), (server.host.as_str(), server.port));
        let connection = AsyncSmtpConnection::connect_tokio1(address, Some(CONNECT_WITHIN), &client, tls, None);
        let mut connection = connection.await.map_err(failed)?;
        if server.tls == Encryption::StartTls {
            connection.starttls(parameters().map_err(failed)?, &client).await.map_err(failed)?;
        }
        if let Some((user, password)) = &server.login {
            let credentials = Credentials::new(user.clone(), password.clone());
            connection.auth(&[Mechanism::Plain, Mechanism::Login], &credentials).await.map_err(failed)?;
        }
        Ok(Self(connection))
    }

    /// Says whose e-mail this is.
    pub(super) async fn begin(&mut self, from: &Address) -> Result<(), HandlerError> {
        self.0
            .command(Mail::new(Some(from.clone()), vec![]))
            .await
            .map(drop)
            .map_err(|error| judged("the sender", &error))
    }

    /// Asks the server to take one recipient; why it does not, and whether that is for good.
    pub(super) async fn offer(&mut self, to: &Address) -> Result<Option<(RefusedRecipient, bool)>, HandlerError> {
        let answer = self.0.command(Rcpt::new(to.clone(), vec![])).await;
        let Err(error) = answer else { return Ok(None) };
        // By 421 the server ends the session, with what it had taken in it.
        let Some(code) = error.status().map(u16::from).filter(|code| *code != 421) else {
            return Err(judged("a recipient", &error));
        };
        let refused = RefusedRecipient { to: to.to_string(), code, text: said(&error) };
        Ok(Some((refused, error.is_permanent())))
    }

    /// Hands over the e-mail; what the server says to that.
    pub(super) async fn hand_over(&mut self, email: &Email) -> Result<String, HandlerError> {
        self.0.command(Data).await.map_err(|error| judged("the e-mail", &error))?;
        let whole = std::iter::from_fn(|| {
            // Asked for another piece: behind this one there is only the final dot.
            email.is_unanswered.store(true, Ordering::Relaxed);
            None
        });
        let answer = self.0.message_iter(std::iter::once(&email.bytes).chain(whole)).await;
        let was_whole = email.is_unanswered.swap(false, Ordering::Relaxed);
        let response: Response = answer.map_err(|error| match error.status() {
            None if was_whole => HandlerError::retryable(format!(
                "the whole e-mail was sent, and the mail server did not answer: {}",
                said(&error)
            )),
            _ => judged("the e-mail", &error),
        })?;
        Ok(format!("{} {}", response.code(), response.first_line().unwrap_or_default()).trim_end().to_owned())
    }

    pub(super) async fn close(mut self) {
        let _ = tokio::time::timeout(CLOSE_WITHIN, self.0.quit()).await;
    }
}

/// 5xx fails the job for good, all else is worth another attempt.
fn judged(what: &str, error: &Error) -> HandlerError {
    let message = format!("the mail server does not take {what}: {}", answered(error));
    if error.is_permanent() { HandlerError::permanent(message) } else { HandlerError::retryable(message) }
}

/// Its code, if the server said no, and its words.
fn answered(error: &Error) -> String {
    let code = error.status().map(|code| format!("{code} ")).unwrap_or_default();
    code + &said(error)
}

/// The server's own words where there are some.
fn said(error: &Error) -> String {
    use std::error::Error as _;
    let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    words.chars().take(WORDS).collect()
}
