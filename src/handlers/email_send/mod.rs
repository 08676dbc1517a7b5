//! `email.send`: a job is an e-mail, handed over to the server that settings name.
//!
//! `message` makes the e-mail of the payload, `session` hands it over. While the server puts a recipient off, nobody
//! gets the e-mail and the job is tried again, so that no recipient has it twice; the last attempt sends it to those
//! whom the server takes.

use longshore_actors::handler::BoxFuture;
use longshore_actors::{Context, Handler, HandlerError, Success};
use serde_json::json;

mod message;
mod session;

use message::{Email, Payload};
use session::{Refused, Session};

pub(crate) use message::mailbox;

/// How the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// From the first byte.
    Implicit,
    /// After a greeting in the clear; the server has to offer it.
    Requested,
    /// Never.
    None,
}

/// The mail server.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Tls,
    /// User and password.
    pub(crate) login: Option<(String, String)>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The handler.
#[derive(Debug)]
pub(crate) struct EmailSend {
    server: Server,
    /// The sender of e-mails that name none.
    from: Option<String>,
}

impl EmailSend {
    pub(crate) fn new(server: Server, from: Option<String>) -> Self {
        Self { server, from }
    }

    async fn perform(&self, context: &Context) -> Result<Success, HandlerError> {
        let payload: Payload = context.json()?;
        let email = payload.email(context, self.from.as_deref())?;
        tokio::select! {
            sent = self.send(context, email) => sent,
            () = context.cancelled() => Err(HandlerError::retryable("the e-mail was stopped on its way")),
        }
    }

    async fn send(&self, context: &Context, email: Email) -> Result<Success, HandlerError> {
        // What fails before the server was asked to take this e-mail is no fault of the e-mail.
        let mut session = Session::open(&self.server).await?;
        session.begin(&email.from).await?;
        let (mut accepted, mut refused) = (Vec::new(), Vec::new());
        for recipient in email.to {
            match session.offer(&recipient).await? {
                None => accepted.push(recipient.to_string()),
                Some(reason) => refused.push(reason),
            }
        }
        let is_put_off = refused.iter().any(|refused| !refused.permanent);
        if accepted.is_empty() || is_put_off && context.attempt < context.max_attempts {
            session.close().await;
            let message = format!("the server refuses {}", listed(&refused));
            return Err(match is_put_off {
                true => HandlerError::retryable(message),
                false => HandlerError::permanent(message),
            });
        }
        let response = session.hand_over(&email.bytes).await?;
        session.close().await;
        if !refused.is_empty() {
            context.log(format!("sent to all but {}", listed(&refused))).await;
        }
        let refused: Vec<_> = refused
            .iter()
            .map(|refused| json!({"to": refused.to, "code": refused.code, "text": refused.text}))
            .collect();
        let id = email.message_id;
        Ok(json!({"message_id": id, "accepted": accepted, "refused": refused, "response": response}).into())
    }
}

impl Handler for EmailSend {
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        Box::pin(async move { self.perform(&context).await })
    }
}

fn listed(refused: &[Refused]) -> String {
    let each = refused.iter().map(|refused| format!("{} ({} {})", refused.to, refused.code, refused.text));
    each.collect::<Vec<_>>().join(", ")
}
