//! What the server refuses for lack of a right. It says so beside the connection's other messages, some time after the
//! request; the request itself just stays without an answer, and the subscription silent.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// More than one call of ours can meet. The oldest is forgotten first.
const KEPT: usize = 16;

/// What the server says of a login that it refuses, or that has been taken away or run out.
const OF_LOGINS: [&str; 3] = ["authorization violation", "authentication expired", "authentication revoked"];

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    rights: watch::Sender<Vec<MissingRight>>,
    /// Why the login was refused, until it is not any more.
    login: Mutex<Option<String>>,
}

/// A right that the connection's user lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the NATS user lacks the right to {right} {subject}")]
pub struct MissingRight {
    right: &'static str,
    /// The subject, as it was asked for.
    subject: String,
}

const PUBLISH: &str = "publish to";
const SUBSCRIBE: &str = "subscribe to";

impl MissingRight {
    /// What to do about it. Of an inbox the message names the one that was tried.
    pub const HINT: &str = "grant it in the permissions of the NATS server, or use another user; for a subject under \
                            _INBOX, --inbox-prefix names one that this user may subscribe to; docs/contract.md lists \
                            what each client needs";

    /// Reads the server's words: `Permissions Violation for Subscription to "a.b" using queue "q"`.
    fn parse(said: &str) -> Option<Self> {
        let (_, what) = said.split_once("Permissions Violation for ")?;
        let (right, rest) = match what.split_once(" to \"")? {
            ("Publish", rest) => (PUBLISH, rest),
            ("Subscription", rest) => (SUBSCRIBE, rest),
            _ => return None,
        };
        let (subject, _) = rest.split_once('"')?;
        Some(Self { right, subject: subject.to_owned() })
    }

    pub(crate) fn is_of_publish(&self, subject: &str) -> bool {
        self.right == PUBLISH && self.subject == subject
    }

    pub(crate) fn is_of_subscription(&self, subject: &str) -> bool {
        self.right == SUBSCRIBE && self.subject == subject
    }

    /// Whether it is about publishing to a subject that begins so.
    pub(crate) fn is_of_publish_below(&self, prefix: &str) -> bool {
        self.right == PUBLISH && self.is_below(prefix)
    }

    /// Whether it is about a subscription for answers, which begin so.
    pub(crate) fn is_of_inbox(&self, prefix: &str) -> bool {
        self.right == SUBSCRIBE && self.is_below(prefix)
    }

    fn is_below(&self, prefix: &str) -> bool {
        self.subject.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    pub(crate) fn has_token(&self, token: &str) -> bool {
        self.subject.split('.').any(|one| one == token)
    }
}

impl Refusals {
    /// Keeps what the server said, if it is a refusal; says whether it is one of the login.
    pub(crate) fn note(&self, said: &str) -> bool {
        let words = said.to_ascii_lowercase();
        let is_of_login = OF_LOGINS.iter().any(|of_login| words.contains(of_login));
        if is_of_login {
            *self.login.lock().unwrap_or_else(PoisonError::into_inner) = Some(said.to_owned());
        }
        let Some(refusal) = MissingRight::parse(said) else { return is_of_login };
        self.rights.send_modify(|kept| {
            kept.retain(|other| *other != refusal);
            kept.push(refusal);
            let excess = kept.len().saturating_sub(KEPT);
            kept.drain(..excess);
        });
        is_of_login
    }

    /// The connection stands.
    pub(crate) fn is_logged_in(&self) {
        *self.login.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn of_login(&self) -> Option<String> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets those that fit: what was refused is tried again, and may be allowed by now.
    pub(crate) fn forget(&self, fits: impl Fn(&MissingRight) -> bool) {
        self.rights.send_if_modified(|kept| {
            let before = kept.len();
            kept.retain(|refusal| !fits(refusal));
            kept.len() < before
        });
    }

    /// Waits for one that fits.
    pub(crate) fn next<F: Fn(&MissingRight) -> bool>(&self, fits: F) -> impl Future<Output = MissingRight> + use<F> {
        let mut kept = self.rights.subscribe();
        async move {
            let found = |kept: &Vec<MissingRight>| kept.iter().find(|refusal| fits(refusal)).cloned();
            let refusal = kept.wait_for(|kept| found(kept).is_some()).await.ok().and_then(|kept| found(&kept));
            match refusal {
                Some(refusal) => refusal,
                // The connection is gone: nothing is refused any more.
                None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_are_read() {
        let said = |text: &str| MissingRight::parse(text).map(|refusal| refusal.to_string());
        let subscription =
            "nats: Permissions Violation for Subscription to \"longshore.work.acme.>\" using queue \"q\"";
        let lacks = "the NATS user lacks the right to subscribe to longshore.work.acme.>";
        assert_eq!(said(subscription).as_deref(), Some(lacks));
        let publish = "Permissions Violation for Publish to \"longshore.api._all.queues.list\"";
        let lacks = "the NATS user lacks the right to publish to longshore.api._all.queues.list";
        assert_eq!(said(publish).as_deref(), Some(lacks));
        for other in
            ["", "stale connection", "Permissions Violation for Reading to \"a\"", "Permissions Violation for "]
        {
            assert_eq!(said(other), None, "{other}");
        }
    }

    #[test]
    fn a_login_is_refused_until_it_is_accepted() {
        let refusals = Refusals::default();
        assert!(!refusals.note("stale connection"));
        assert_eq!(refusals.of_login(), None);
        assert!(refusals.note("nats: Authorization Violation"));
        assert!(!refusals.note("connection refused"));
        assert_eq!(refusals.of_login().as_deref(), Some("nats: Authorization Violation"));
        refusals.is_logged_in();
        assert_eq!(refusals.of_login(), None);
    }

    #[tokio::test]
    async fn a_refusal_is_met_by_who_asked_and_forgotten_by_who_asks_again() {
        let refusals = Refusals::default();
        for number in 0..40 {
            refusals.note(&format!("Permissions Violation for Publish to \"a.{number}\""));
        }
        assert_eq!(refusals.rights.borrow().len(), KEPT);
        let met = refusals.next(|refusal| refusal.is_of_publish("a.39")).await;
        assert!(met.is_of_publish_below("a") && !met.is_of_publish_below("a.3"));
        assert!(met.has_token("39") && !met.has_token("a.39") && !met.is_of_subscription("a.39"));
        refusals.forget(|refusal| refusal.is_of_publish("a.39"));
        let mut again = std::pin::pin!(refusals.next(|refusal| refusal.is_of_publish("a.39")));
        assert!(futures_util::FutureExt::now_or_never(again.as_mut()).is_none());
        refusals.note("Permissions Violation for Publish to \"a.39\"");
        assert!(again.await.is_of_publish("a.39"));
        refusals.note("Permissions Violation for Subscription to \"_INBOX.x.*\"");
        let met = refusals.next(|refusal| refusal.is_of_inbox("_INBOX")).await;
        assert!(!met.is_of_inbox("_IN") && !met.is_of_inbox("_INBOX_acme"));
    }
}
