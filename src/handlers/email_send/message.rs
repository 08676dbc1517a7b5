//! The e-mail that a payload describes.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, Message, MultiPart, SinglePart};
use lettre::{Address, message::MessageBuilder};
use longshore_actors::{Context, HandlerError};
use serde::Deserialize;

/// The most recipients of one e-mail.
const RECIPIENTS: usize = 100;
/// Headers that follow from other fields, or belong to servers on the way.
const OWN: [&str; 13] = [
    "bcc",
    "cc",
    "date",
    "dkim-signature",
    "from",
    "message-id",
    "mime-version",
    "received",
    "reply-to",
    "return-path",
    "sender",
    "subject",
    "to",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmailPayload {
    #[serde(default)]
    to: Vec<String>,
    #[serde(default)]
    cc: Vec<String>,
    #[serde(default)]
    bcc: Vec<String>,
    from: Option<String>,
    reply_to: Option<String>,
    subject: String,
    text: Option<String>,
    html: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    attachments: Vec<Attached>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attached {
    name: String,
    content_type: String,
    content_base64: String,
}

pub(super) struct Email {
    pub(super) from: Address,
    /// Each recipient once.
    pub(super) to: Vec<Address>,
    pub(super) message_id: String,
    pub(super) bytes: Vec<u8>,
    /// Whether all of it is sent and not answered: the server may send it on, although nobody here hears of that.
    pub(super) is_unanswered: AtomicBool,
}

impl EmailPayload {
    /// The e-mail; `from` is its sender if it names none. A field that is wrong fails the job for good.
    pub(super) fn email(self, context: &Context, from: Option<&str>) -> Result<Email, HandlerError> {
        let Some(from) = self.from.as_deref().or(from) else {
            return Err(wrong("from", "is missing, and email.from is not set"));
        };
        let from = mailbox(from).map_err(|reason| wrong("from", &reason))?;
        let job = &context.job;
        // The same for every attempt, so that a server or reader that has the e-mail already can drop it.
        let message_id = format!("<{}.{}@{}>", job.run_id, job.tenant, from.email.domain());
        let mut builder = Message::builder().from(from.clone()).message_id(Some(message_id.clone()));
        let mut to: Vec<Address> = Vec::new();
        for (field, texts) in [("to", &self.to), ("cc", &self.cc), ("bcc", &self.bcc)] {
            for text in texts {
                let mailbox = mailbox(text).map_err(|reason| wrong(field, &reason))?;
                if !to.contains(&mailbox.email) {
                    to.push(mailbox.email.clone());
                }
                builder = match field {
                    "to" => builder.to(mailbox),
                    "cc" => builder.cc(mailbox),
                    _ => builder.bcc(mailbox),
                };
            }
        }
        if to.is_empty() || to.len() > RECIPIENTS {
            return Err(wrong("to", &format!("an e-mail has 1 to {RECIPIENTS} recipients, not {}", to.len())));
        }
        if let Some(text) = &self.reply_to {
            builder = builder.reply_to(mailbox(text).map_err(|reason| wrong("reply_to", &reason))?);
        }
        builder = builder.subject(one_line("subject", &self.subject)?);
        builder = self.own_headers(builder)?;
        let bytes = self.built(builder)?.formatted();
        Ok(Email { from: from.email, to, message_id, bytes, is_unanswered: AtomicBool::new(false) })
    }

    fn own_headers(&self, mut builder: MessageBuilder) -> Result<MessageBuilder, HandlerError> {
        for (name, text) in &self.headers {
            let lower = name.to_ascii_lowercase();
            // The library takes control characters in a name: with a line break it could add others.
            let known = Some(name).filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()));
            let known = known.and_then(|name| HeaderName::new_from_ascii(name.clone()).ok());
            let known = known.ok_or_else(|| wrong("headers", &format!("{name:?} is no header")))?;
            if OWN.contains(&lower.as_str()) || lower.starts_with("content-") {
                return Err(wrong("headers", &format!("{name} cannot be set")));
            }
            builder =
                builder.raw_header(HeaderValue::new(known, one_line(&format!("headers: {name}"), text)?.to_owned()));
        }
        Ok(builder)
    }

    fn built(self, builder: MessageBuilder) -> Result<Message, HandlerError> {
        let body = match (self.text, self.html) {
            (None, None) => return Err(wrong("text", "is missing, and so is html")),
            (Some(text), None) => BodyPart::Single(SinglePart::plain(text)),
            (None, Some(html)) => BodyPart::Single(SinglePart::html(html)),
            (Some(text), Some(html)) => BodyPart::Multi(MultiPart::alternative_plain_html(text, html)),
        };
        let built = if self.attachments.is_empty() {
            match body {
                BodyPart::Single(part) => builder.singlepart(part),
                BodyPart::Multi(part) => builder.multipart(part),
            }
        } else {
            let mixed = MultiPart::mixed();
            let mut mixed = match body {
                BodyPart::Single(part) => mixed.singlepart(part),
                BodyPart::Multi(part) => mixed.multipart(part),
            };
            for attached in &self.attachments {
                mixed = mixed.singlepart(attached.part()?);
            }
            builder.multipart(mixed)
        };
        built.map_err(|error| HandlerError::permanent(format!("payload: {error}")))
    }
}

enum BodyPart {
    Single(SinglePart),
    Multi(MultiPart),
}

impl Attached {
    fn part(&self) -> Result<SinglePart, HandlerError> {
        let name = one_line("attachments: name", &self.name)?;
        let kind = one_line("attachments: content_type", &self.content_type)?;
        let kind = ContentType::parse(kind);
        let kind = kind.map_err(|_| wrong("attachments: content_type", &format!("{:?} is none", self.content_type)))?;
        let content = STANDARD.decode(&self.content_base64);
        let content = content.map_err(|error| wrong("attachments: content_base64", &error.to_string()))?;
        Ok(Attachment::new(name.to_owned()).body(content, kind))
    }
}

/// An address, alone or as `Ann <ann@shop.example>`.
pub(crate) fn mailbox(text: &str) -> Result<Mailbox, String> {
    if text.contains(|letter: char| letter.is_control()) {
        return Err("an address has a line break or another control character".to_owned());
    }
    let mailbox: Mailbox = text.parse().map_err(|_| format!("{text:?} is no address such as ann@shop.example"))?;
    match AsRef::<str>::as_ref(&mailbox.email).is_ascii() {
        true => Ok(mailbox),
        false => Err(format!("{text:?} has letters beyond ASCII in its address")),
    }
}

/// A text that goes into a header: with a line break it could add others.
fn one_line<'t>(field: &str, text: &'t str) -> Result<&'t str, HandlerError> {
    match text.contains(|letter: char| letter.is_control()) {
        true => Err(wrong(field, "has a line break or another control character")),
        false => Ok(text),
    }
}

fn wrong(field: &str, reason: &str) -> HandlerError {
    HandlerError::permanent(format!("payload: {field}: {reason}"))
}
