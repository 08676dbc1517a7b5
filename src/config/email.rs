//! The settings `[email]`: the server to which e-mails are handed over, and their usual sender.

use super::http_call::Secret;
use super::kind::Text;
#[cfg(feature = "email")]
use super::kind::shown;
use super::own_kinds::Encryption;
#[cfg(feature = "email")]
use super::problem::Problem;
#[cfg(feature = "email")]
use super::section::Section;
use super::section::settings;

/// The table's name, and that of the handler whose settings it has.
#[cfg(feature = "email")]
pub(crate) const TABLE: &str = "email";
pub(crate) const HANDLER: &str = "email.send";

settings! {
    /// The mail server for the handler "email.send", which this node has if a server is set here.
    EMAIL: EmailEntries, EMAIL_TABLE;

    /// The server, and the user that logs in there, if one does. Without a port, the usual one.
    server: Option<Text>, example("\"smtp://shop@mail.example:587\"");
    /// The user's password: a variable, { env = "SMTP_PASSWORD" }, a file, { file = "smtp-password" }, or the text
    /// itself.
    password: Option<Secret>, example("\"secret\"");
    /// "starttls": the server has to offer it after its greeting; "tls": from the first byte; "none".
    tls: Encryption = Encryption::StartTls;
    /// The sender of e-mails that name none.
    from: Option<Text>, example("\"Shop <orders@shop.example>\"");
}

/// The handler that the table describes; `None`: no server is set.
#[cfg(feature = "email")]
pub(super) fn read(root: &Section<'_>) -> Result<Option<crate::handlers::email_send::EmailSend>, Problem> {
    use std::sync::OnceLock;

    use crate::handlers::email_send::{EmailSend, MailServer, mailbox};

    let section = root.table(TABLE);
    let wrong = |name: &'static str| {
        let section = &section;
        move |reason: String| section.problem(name, reason)
    };
    let Some(Text(server)) = section.get(&EMAIL.server) else { return Ok(None) };
    let (user, host, port) = address(&server).map_err(wrong(EMAIL.server.name))?;
    let tls = section.get(&EMAIL.tls);
    let usual = match tls {
        Encryption::StartTls => 587,
        Encryption::Tls => 465,
        Encryption::None => 25,
    };
    let login = match (user, section.get(&EMAIL.password)) {
        (None, None) => None,
        (Some(user), Some(password)) => {
            let origin = section.origin(EMAIL.password.name).map(|(_, origin)| origin);
            Some((user, password.text(origin).map_err(wrong(EMAIL.password.name))?))
        }
        (Some(_), None) => return Err(wrong(EMAIL.server.name)("names a user; its password is missing".to_owned())),
        (None, Some(_)) => return Err(wrong(EMAIL.password.name)("has no user; write it into server".to_owned())),
    };
    let from = section.get(&EMAIL.from).map(|from| from.0);
    from.as_deref().map(mailbox).transpose().map_err(wrong(EMAIL.from.name))?;
    let server = MailServer { host, port: port.unwrap_or(usual), tls, login, trusted: OnceLock::new() };
    Ok(Some(EmailSend { server, from }))
}

/// User, host and port of `smtp://user@host:587`.
#[cfg(feature = "email")]
fn address(text: &str) -> Result<(Option<String>, String, Option<u16>), String> {
    let wrong = || format!("{} is not an address such as \"smtp://user@mail.example:587\"", shown(&text.into()));
    let url = url::Url::parse(text).map_err(|_| wrong())?;
    if url.password().is_some() {
        return Err("has a password in it; write it into password".to_owned());
    }
    let host = match url.host().ok_or_else(wrong)? {
        // Without the brackets that it has in a URL.
        url::Host::Ipv6(address) => address.to_string(),
        host => host.to_string(),
    };
    if host.is_empty()
        || url.scheme() != "smtp"
        || !matches!(url.path(), "" | "/")
        || url.query().is_some()
        || url.port() == Some(0)
    {
        return Err(wrong());
    }
    let user = percent_encoding::percent_decode_str(url.username()).decode_utf8().map_err(|_| wrong())?;
    Ok(((!user.is_empty()).then(|| user.into_owned()), host, url.port()))
}

#[cfg(all(test, feature = "email"))]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_name_or_an_address() {
        for (text, host) in [
            ("smtp://mail.example", "mail.example"),
            ("smtp://192.0.2.7", "192.0.2.7"),
            ("smtp://[::1]:25", "::1"),
            ("smtp://shop@[2001:db8::7]:25", "2001:db8::7"),
        ] {
            assert_eq!(address(text).map(|(_, host, _)| host), Ok(host.to_owned()), "{text}");
        }
    }
}
