//! `email.send`: a job is an e-mail, handed over to the server that settings name.
//!
//! `message` makes the e-mail of the payload, `session` hands it over. Who has it is a step of the run, so that another
//! attempt goes to those alone whom the server had put off.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use lettre::Address;
use lettre::transport::smtp::client::TlsParameters;
use longshore_actors::handler::BoxFuture;
use longshore_actors::{Context, Handler, HandlerError, Success};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::own_kinds::Encryption;

mod message;
mod session;

use message::{Email, EmailPayload};
use session::{RefusedRecipient, Session};

pub(crate) use message::mailbox;

/// The name of the run's steps: each is one time that the e-mail was handed over.
const STEP: &str = "hand_over";

pub(crate) struct MailServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls: Encryption,
    /// User and password.
    pub(crate) login: Option<(String, String)>,
    /// The certificates that are trusted, once they were read.
    pub(crate) trusted: OnceLock<TlsParameters>,
}

impl std::fmt::Debug for MailServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

#[derive(Debug)]
pub(crate) struct EmailSend {
    pub(crate) server: MailServer,
    /// The sender of e-mails that name none.
    pub(crate) from: Option<String>,
}

impl EmailSend {
    async fn perform(&self, context: &Context) -> Result<Success, HandlerError> {
        let payload: EmailPayload = super::payload(context)?;
        let email = payload.email(context, self.from.as_deref())?;
        tokio::select! {
            sent = self.send(context, &email) => sent,
            () = context.cancelled() => {
                if email.is_unanswered.load(Ordering::Relaxed) {
                    context.log("the whole e-mail was sent, and the mail server had not answered").await;
                }
                Err(HandlerError::retryable("the e-mail was stopped on its way"))
            }
        }
    }

    async fn send(&self, context: &Context, email: &Email) -> Result<Success, HandlerError> {
        let (mut left, mut sent) = (email.to.clone(), HandedOver::default());
        loop {
            let is_new = AtomicBool::new(false);
            let work = || async {
                is_new.store(true, Ordering::Relaxed);
                self.hand_over(email, &left, sent.accepted.is_empty()).await
            };
            let step: HandedOver = context.step(STEP, work).await?;
            sent.accepted.extend(step.accepted);
            sent.refused.extend(step.refused);
            sent.response = step.response.or(sent.response);
            left.retain(|to| !sent.knows(to.as_ref()));
            if left.is_empty() {
                break;
            }
            if is_new.load(Ordering::Relaxed) {
                let message = format!("the server puts off {}; the others have the e-mail", listed(&step.put_off));
                return Err(HandlerError::retryable(message));
            }
        }
        let HandedOver { accepted, refused, response, .. } = sent;
        if !refused.is_empty() {
            context.log(format!("sent to all but {}", listed(&refused))).await;
        }
        let id = &email.message_id;
        Ok(json!({"message_id": id, "accepted": accepted, "refused": refused, "response": response}).into())
    }

    /// Hands the e-mail over to those of these recipients whom the server takes. An error if nobody has it: if this is
    /// the `first` time, also if the server refuses all of them.
    async fn hand_over(&self, email: &Email, to: &[Address], first: bool) -> Result<HandedOver, HandlerError> {
        let mut session = Session::open(&self.server).await?;
        session.begin(&email.from).await?;
        let mut done = HandedOver::default();
        for recipient in to {
            match session.offer(recipient).await? {
                None => done.accepted.push(recipient.to_string()),
                Some((refused, true)) => done.refused.push(refused),
                Some((refused, false)) => done.put_off.push(refused),
            }
        }
        if !done.accepted.is_empty() {
            done.response = Some(session.hand_over(email).await?);
        }
        // Not waited for: until the step is stored, a death has the e-mail sent again.
        tokio::spawn(session.close());
        let said = |refused: &[RefusedRecipient]| format!("the server refuses {}", listed(refused));
        match done.accepted.is_empty() {
            true if !done.put_off.is_empty() => Err(HandlerError::retryable(said(&done.put_off))),
            true if first => Err(HandlerError::permanent(said(&done.refused))),
            _ => Ok(done),
        }
    }
}

/// What became of an e-mail.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HandedOver {
    accepted: Vec<String>,
    /// For good.
    refused: Vec<RefusedRecipient>,
    /// For now.
    put_off: Vec<RefusedRecipient>,
    /// The server's last word.
    response: Option<String>,
}

impl HandedOver {
    /// Whether a recipient has the e-mail, or never will.
    fn knows(&self, to: &str) -> bool {
        self.accepted.iter().any(|known| known == to) || self.refused.iter().any(|refused| refused.to == to)
    }
}

impl Handler for EmailSend {
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        Box::pin(async move { self.perform(&context).await })
    }
}

fn listed(refused: &[RefusedRecipient]) -> String {
    let each = refused.iter().map(|refused| format!("{} ({} {})", refused.to, refused.code, refused.text));
    each.collect::<Vec<_>>().join(", ")
}
