//! An e-mail reaches each recipient that the server takes, once, and nothing in a job makes another e-mail of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use longshore_harness::{NodeBuilder, World};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::{AT_ONCE, served_by, world};

/// An e-mail that the server took.
#[derive(Debug, Clone, Default)]
struct Mail {
    from: String,
    to: Vec<String>,
    text: String,
    has_tls: bool,
}

/// A mail server on loopback. What it answers follows from addresses: `later@` is put off, `once@` the first time
/// only, `never@` refused, and `closing@` ends the session; of a sender `full@` and `spam@` it refuses the e-mail,
/// `cut@` loses the connection within it, `hang@` gets no answer, `stays@` none to its goodbye.
#[derive(Clone)]
struct MailServer {
    port: u16,
    tls: TlsAcceptor,
    is_implicit: bool,
    offers_tls: bool,
    mails: Arc<Mutex<Vec<Mail>>>,
    put_off: Arc<Mutex<Vec<String>>>,
}

impl MailServer {
    /// Starts one; its certificate is written into the world's folder.
    async fn start(world: &World, is_implicit: bool, offers_tls: bool) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        std::fs::write(certificate_of(world, port), certificate.pem()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        let (mails, put_off) = Default::default();
        let server = Self { port, tls, is_implicit, offers_tls, mails, put_off };
        let own = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move {
                    if own.is_implicit {
                        let stream = own.tls.accept(stream).await?;
                        own.talk(BufReader::new(stream), true, true).await.map(drop)
                    } else if let Some(stream) = own.talk(BufReader::new(stream), false, true).await? {
                        let stream = own.tls.accept(stream.into_inner()).await?;
                        own.talk(BufReader::new(stream), true, false).await.map(drop)
                    } else {
                        Ok::<(), std::io::Error>(())
                    }
                });
            }
        });
        server
    }

    /// Talks until the connection ends, or is to be encrypted.
    async fn talk<S>(
        &self,
        mut stream: BufReader<S>,
        has_tls: bool,
        greets: bool,
    ) -> std::io::Result<Option<BufReader<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if greets {
            stream.write_all(b"220 mail.test\r\n").await?;
        }
        let (mut mail, mut line) = (Mail { has_tls, ..Mail::default() }, String::new());
        loop {
            stream.flush().await?;
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(None);
            }
            let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
            let address = || rest.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
            let answer = match word {
                "EHLO" if self.offers_tls && !has_tls => "250-mail.test\r\n250-STARTTLS\r\n250 AUTH PLAIN",
                "EHLO" => "250-mail.test\r\n250 AUTH PLAIN",
                "STARTTLS" => {
                    stream.write_all(b"220 go on\r\n").await?;
                    stream.flush().await?;
                    return Ok(Some(stream));
                }
                "AUTH" if rest == "PLAIN AHNob3BAeAB0b3Atc2VjcmV0" => "235 welcome",
                "AUTH" => "535 wrong password",
                "MAIL" if rest.contains("<banned@") => "550 not from here",
                "MAIL" => {
                    mail.from = address();
                    "250 yes"
                }
                "RCPT" => match self.taken(&address()) {
                    None => {
                        mail.to.push(address());
                        "250 yes"
                    }
                    Some(refusal) => refusal,
                },
                "DATA" => {
                    stream.write_all(b"354 go on\r\n").await?;
                    stream.flush().await?;
                    let most = if mail.from.starts_with("cut@") { 20 } else { usize::MAX };
                    let Some(text) = text_of(&mut stream, most).await? else { return Ok(None) };
                    mail.text = text;
                    match mail.from.split('@').next().unwrap() {
                        "full" => "452 no room",
                        "spam" => "554 no",
                        "hang" => std::future::pending().await,
                        _ => {
                            self.mails.lock().unwrap().push(std::mem::take(&mut mail));
                            "250 taken as 7"
                        }
                    }
                }
                "QUIT" if self.mails().last().is_some_and(|mail| mail.from.starts_with("stays@")) => {
                    std::future::pending().await
                }
                "QUIT" => "221 bye",
                _ => "500 what",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
    }

    /// Why it does not take this recipient.
    fn taken(&self, address: &str) -> Option<&'static str> {
        let mut put_off = self.put_off.lock().unwrap();
        match address.split('@').next().unwrap() {
            "later" => Some("451 come again"),
            "closing" => Some("421 closing"),
            "never" => Some("550 no such user"),
            "once" if !put_off.iter().any(|known| known == address) => {
                put_off.push(address.to_owned());
                Some("450 busy")
            }
            _ => None,
        }
    }

    fn mails(&self) -> Vec<Mail> {
        self.mails.lock().unwrap().clone()
    }
}

/// An e-mail to its end; `None`: it has more bytes than that.
async fn text_of(stream: &mut (impl AsyncRead + Unpin), most: usize) -> std::io::Result<Option<String>> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n.\r\n") {
        if text.len() == most {
            return Ok(None);
        }
        text.push(stream.read_u8().await?);
    }
    Ok(Some(String::from_utf8(text).unwrap()))
}

fn certificate_of(world: &World, port: u16) -> PathBuf {
    world.dir().join(format!("{port}.pem"))
}

/// A node that hands e-mails to this server.
fn with<'w>(world: &'w World, server: &MailServer, email: &str, of_type: &str) -> NodeBuilder<'w> {
    let node = world.node().with("types.mail", &served_by("email.send", of_type)).with("email", email);
    node.env("SSL_CERT_FILE", &certificate_of(world, server.port).display().to_string())
}

/// The same, without encryption and login.
fn plain<'w>(world: &'w World, server: &MailServer, of_type: &str) -> NodeBuilder<'w> {
    let email = format!("server = 'smtp://localhost:{}'\ntls = 'none'\nfrom = 'Shop <shop@x.test>'", server.port);
    with(world, server, &email, of_type)
}

fn mail(to: &[&str]) -> Value {
    json!({"to": to, "subject": "s", "text": "t"})
}

/// Given a server with encryption and login, when an e-mail is sent, then it is there as the payload says, and the
/// password is nowhere else.
#[tokio::test]
async fn an_e_mail_is_handed_over_encrypted_as_the_payload_says() {
    let world = world().await;
    for (is_implicit, tls) in [(true, "tls"), (false, "starttls")] {
        let server = MailServer::start(&world, is_implicit, true).await;
        let email = format!(
            "server = 'smtp://shop%40x@localhost:{}'\npassword = {{ env = 'SMTP_PASSWORD' }}\ntls = '{tls}'\nfrom = 'shop@x.test'",
            server.port
        );
        let node = with(&world, &server, &email, "max_attempts = 1").env("SMTP_PASSWORD", "top-secret").start().await;
        let payload = json!({
            "to": ["Ann <ann@a.test>", "ann@a.test"], "cc": ["bob@b.test"], "bcc": ["carl@c.test"],
            "reply_to": "help@x.test", "subject": "Größe\u{1f600}", "text": "Hello\n.\nyou", "html": "<b>Hello</b>",
            "headers": {"X-Order": "7"},
            "attachments": [{"name": "a.csv", "content_type": "text/csv", "content_base64": "/wABAg=="}],
        });
        let run = world.publish("mail").header("Longshore-Run-Id", &format!("order-{tls}")).json(payload).await;

        let end = world.wait(&run).await;
        let result = end.result.unwrap_or_else(|| panic!("{:?}", end.error));
        let id = format!("<order-{tls}.default@x.test>");
        let expected = json!({"message_id": id, "accepted": ["ann@a.test", "bob@b.test", "carl@c.test"], "refused": [],
            "response": "250 taken as 7"});
        assert_eq!(result, expected);
        let [mail] = &server.mails()[..] else { panic!("{:?}", server.mails()) };
        assert!(mail.has_tls && mail.from == "shop@x.test", "{mail:?}");
        assert_eq!(mail.to, ["ann@a.test", "bob@b.test", "carl@c.test"]);
        for line in [
            format!("Message-ID: {id}"),
            "From: shop@x.test".to_owned(),
            "Cc: bob@b.test".to_owned(),
            "Reply-To: help@x.test".to_owned(),
            "X-Order: 7".to_owned(),
            "/wABAg==".to_owned(),
            "..".to_owned(),
            "<b>Hello</b>".to_owned(),
        ] {
            assert!(mail.text.lines().any(|own| own == line), "{line} is not in {}", mail.text);
        }
        assert!(
            mail.text.contains("\r\nSubject: =?utf-8?b?") && mail.text.contains("filename=\"a.csv\""),
            "{}",
            mail.text
        );
        assert!(!mail.text.contains("carl@c.test") && !mail.text.contains("Bcc"), "{}", mail.text);
        node.stop().await;
        assert!(!(node.log().tail(10_000) + &world.report(&run).await).contains("top-secret"));
    }
}

/// 4xx and lost connections are worth another attempt, 5xx are not; recipients are named.
#[tokio::test]
async fn the_servers_code_says_whether_the_job_is_tried_again() {
    let world = world().await;
    let server = MailServer::start(&world, false, false).await;
    let _node = plain(&world, &server, &format!("max_attempts = 1\ntimeout = '5s'\n{AT_ONCE}")).start().await;
    for (from, to, kind, says) in [
        ("banned@x.test", "ann@a.test", "permanent", "does not take the sender: 550 not from here"),
        ("full@x.test", "ann@a.test", "retryable", "does not take the e-mail: 452 no room"),
        ("spam@x.test", "ann@a.test", "permanent", "does not take the e-mail: 554 no"),
        ("cut@x.test", "ann@a.test", "retryable", "e-mail was sent, and the mail server did not answer: "),
        ("hang@x.test", "ann@a.test", "timeout", "limit of 5s"),
        ("shop@x.test", "never@a.test", "permanent", "the server refuses never@a.test (550 no such user)"),
        ("shop@x.test", "later@a.test", "retryable", "the server refuses later@a.test (451 come again)"),
        ("shop@x.test", "closing@a.test", "retryable", "does not take a recipient: 421 closing"),
    ] {
        let mut payload = mail(&["first@a.test", to][usize::from(!to.starts_with("closing@"))..]);
        payload["from"] = json!(from);
        let end = world.wait(&world.publish("mail").json(payload).await).await;
        let error = end.error.unwrap();
        assert!(error.kind == kind && error.message.contains(says), "{from} {to}: {error:?}");
        let log = format!("{:?}", end.rest.get("log"));
        assert_eq!(
            log.contains("whole e-mail was sent, and the mail server had not answered"),
            from.starts_with("hang@"),
            "{from}: {log}"
        );
    }
    assert!(server.mails().is_empty());
}

/// Given recipients of whom some are refused, then each of the others has the e-mail once, and another attempt goes to
/// those alone who were put off.
#[tokio::test]
async fn each_recipient_that_is_taken_has_the_e_mail_once() {
    let world = world().await;
    let server = MailServer::start(&world, false, false).await;
    let _node = plain(&world, &server, &format!("max_attempts = 3\ntimeout = '5s'\n{AT_ONCE}")).start().await;
    let never = json!([{"to": "never@a.test", "code": 550, "text": "no such user"}]);
    for (to, attempts, accepted, refused) in [
        (vec!["a@a.test", "never@a.test"], 1, vec!["a@a.test"], never.clone()),
        (vec!["b@a.test", "once@a.test", "never@a.test"], 2, vec!["b@a.test", "once@a.test"], never),
    ] {
        let end = world.wait(&world.publish("mail").json(mail(&to)).await).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", attempts), "{end:?}");
        let result = end.result.unwrap();
        assert_eq!((&result["accepted"], &result["refused"]), (&json!(accepted), &refused));
        assert!(end.rest["log"].to_string().contains("sent to all but never@a.test (550 no such user)"));
        let sent: Vec<String> = server.mails().into_iter().flat_map(|mail| mail.to).collect();
        assert!(accepted.iter().all(|to| sent.iter().filter(|known| known == to).count() == 1), "{sent:?}");
    }

    let run = world.publish("mail").json(mail(&["c@a.test", "later@a.test"])).await;
    let end = world.wait(&run).await;
    let error = end.error.unwrap().message;
    assert_eq!((end.state.as_str(), end.attempt), ("dead", 3));
    assert!(error.contains("the server refuses later@a.test (451 come again)"), "{error}");
    world.request("dlq.replay", json!({"run_id": run})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    let sent = server.mails().iter().filter(|mail| mail.to == ["c@a.test"]).count();
    assert_eq!(sent, 1, "in six attempts");

    // What the server says once it has the e-mail is not waited for.
    let mut stays = mail(&["d@a.test"]);
    stays["from"] = json!("stays@x.test");
    let end = world.wait(&world.publish("mail").json(stays).await).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{end:?}");
}

/// Given a node that dies once the e-mail is handed over, before the run's end is stored, when another attempt is made,
/// then the e-mail is not sent again.
#[tokio::test]
async fn an_e_mail_that_was_handed_over_is_not_sent_again_after_a_crash() {
    let world = world().await;
    let server = MailServer::start(&world, false, false).await;
    let kill = "before-record=kill";
    let node =
        plain(&world, &server, AT_ONCE).with("node", "lease = '2s'").env("LONGSHORE_FAIL_POINTS", kill).start().await;
    let run = world.publish("mail").json(mail(&["ann@a.test"])).await;
    node.wait_exit(std::time::Duration::from_secs(60)).await;

    let _second = plain(&world, &server, AT_ONCE).with("node", "lease = '2s'").start().await;
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.result.unwrap()["accepted"].clone()), ("completed", json!(["ann@a.test"])));
    assert_eq!(server.mails().len(), 1);
}

/// A line break in any field, a header that is not the user's, and a payload that is no e-mail fail for good.
#[tokio::test]
async fn nothing_in_a_payload_makes_another_e_mail() {
    let world = world().await;
    let server = MailServer::start(&world, false, false).await;
    let _node = plain(&world, &server, "max_attempts = 1").start().await;
    for (field, value, says) in [
        ("to", json!(["a@a.test\r\nBcc: b@b.test"]), "to: an address has a line break"),
        ("to", json!(["a@a.test> SIZE=1\r\nRCPT TO:<b@b.test"]), "to: an address has a line break"),
        ("cc", json!(["\"x\r\n\" <a@a.test>"]), "cc: an address has a line break"),
        ("bcc", json!(["a"]), "bcc: \"a\" is no address"),
        ("to", json!([]), "to: an e-mail has 1 to 100 recipients, not 0"),
        ("to", json!((0..101).map(|nth| format!("{nth}@a.test")).collect::<Vec<_>>()), "to: an e-mail has 1 to 100"),
        ("to", json!(["\u{e4}@a.test"]), "to: "),
        ("from", json!("a@a.test\nBcc: b@b.test"), "from: an address has a line break"),
        ("reply_to", json!("a@a.test\0"), "reply_to: an address has a line break"),
        ("subject", json!("s\r\nBcc: b@b.test"), "subject: has a line break"),
        ("headers", json!({"X-A": "a\r\nBcc: b@b.test"}), "headers: X-A: has a line break"),
        ("headers", json!({"X-A: b\r\nBcc": "a"}), "headers: \"X-A: b\\r\\nBcc\" is no header"),
        ("headers", json!({"X-A\r\nBcc": "b@b.test"}), "headers: \"X-A\\r\\nBcc\" is no header"),
        ("headers", json!({"X-A\r\n\r\nhello": "a"}), "headers: \"X-A\\r\\n\\r\\nhello\" is no header"),
        ("headers", json!({"bcc": "b@b.test"}), "headers: bcc cannot be set"),
        ("headers", json!({"Content-Type": "text/html"}), "headers: Content-Type cannot be set"),
        (
            "attachments",
            json!([{"name": "a\"\r\nX: y", "content_type": "a/b", "content_base64": ""}]),
            "attachments: name: has a line",
        ),
        (
            "attachments",
            json!([{"name": "a", "content_type": "a/b\r\nX: y", "content_base64": ""}]),
            "attachments: content_type: has a line",
        ),
        (
            "attachments",
            json!([{"name": "a", "content_type": "a", "content_base64": ""}]),
            "attachments: content_type: \"a\" is none",
        ),
        (
            "attachments",
            json!([{"name": "a", "content_type": "a/b", "content_base64": "="}]),
            "attachments: content_base64: ",
        ),
        ("text", json!(null), "text: is missing, and so is html"),
        ("txt", json!("x"), "txt: unknown field `txt`"),
        ("to", json!("a@b.test"), "to: invalid type: string \"a@b.test\", expected an array"),
        ("headers", json!({"X-A": 5}), "headers.X-A: invalid type: integer `5`"),
    ] {
        let mut payload = mail(&["ann@a.test"]);
        payload[field] = value;
        let error = world.wait(&world.publish("mail").json(payload).await).await.error.unwrap();
        assert!(
            error.kind == "permanent" && error.message.starts_with(&format!("payload: {says}")),
            "{says}: {error:?}"
        );
    }
    let error = world.wait(&world.publish("mail").json(json!([])).await).await.error.unwrap();
    assert_eq!(error.message, "payload: is not a JSON object");
    assert!(server.mails().is_empty());
}

/// What is wrong with the server or the login is worth another attempt, whatever its code; settings that cannot work
/// stop the start.
#[tokio::test]
async fn a_wrong_server_costs_no_e_mail_and_wrong_settings_stop_the_start() {
    let world = world().await;
    let server = MailServer::start(&world, false, true).await;
    let without = MailServer::start(&world, false, false).await;
    let (port, plain_port) = (server.port, without.port);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for (email, trusted, says) in [
        (format!("server = 'smtp://shop%40x@localhost:{port}'\npassword = 'wrong'"), port, "535 wrong password"),
        (format!("server = 'smtp://localhost:{port}'"), plain_port, "certificate"),
        (format!("server = 'smtp://localhost:{plain_port}'"), port, "STARTTLS is not supported"),
        (format!("server = 'smtp://localhost:{closed}'"), port, "refused"),
    ] {
        let node =
            with(&world, &server, &format!("{email}\nfrom = 'a@a.test'"), &format!("max_attempts = 1\n{AT_ONCE}"));
        let node = node.env("SSL_CERT_FILE", &certificate_of(&world, trusted).display().to_string()).start().await;
        let error = world.wait(&world.publish("mail").json(mail(&["ann@a.test"])).await).await.error.unwrap();
        assert!(error.kind == "retryable" && error.message.contains(says), "{says}: {error:?}");
        node.stop().await;
    }
    for (email, says) in [
        ("server = 'http://mail.test'", "email.server: \"http://mail.test\" is not an address such as"),
        ("server = 'mail.test:25'", "email.server: \"mail.test:25\" is not an address such as"),
        ("server = 'smtp://u:p@mail.test'", "email.server: has a password in it"),
        ("server = 'smtp://u@mail.test'", "email.server: names a user; its password is missing"),
        ("server = 'smtp://mail.test'\npassword = 'p'", "email.password: has no user"),
        (
            "server = 'smtp://u@mail.test'\npassword = { env = 'NOWHERE' }",
            "email.password: the variable NOWHERE is not set",
        ),
        ("server = 'smtp://mail.test'\ntls = 'maybe'", "email.tls: \"maybe\" is not one of"),
        ("server = 'smtp://mail.test'\nfrom = 'x'", "email.from: \"x\" is no address such as"),
        ("", "types.mail.handler: \"email.send\" needs email.server"),
    ] {
        let refusal = with(&world, &server, email, "").try_start().await.unwrap_err();
        assert!(refusal.log.contains(says), "{says} is not in {}", refusal.log);
    }
    assert!(server.mails().is_empty() && without.mails().is_empty());
}
