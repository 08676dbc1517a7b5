//! What remote handlers announce about themselves, as NATS micro services.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use longshore_domain::duration;
use serde::Deserialize;

use crate::Backbone;
use crate::error::Error;

/// What a remote handler announces about itself as a NATS micro service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// Its service's name and id.
    pub service: String,
    /// The subject it listens on, wildcards and all.
    pub subject: String,
    /// Its capacity: how many jobs it takes at once.
    pub slots: Option<u32>,
    /// The handler promises to signal at least this often.
    pub heartbeat: Option<Duration>,
    /// Announced values that cannot be read, and so do not count.
    pub wrong: Vec<String>,
}

impl Announced {
    pub(super) fn read(service: String, subject: String, says: impl Fn(&str) -> Option<String>) -> Self {
        let mut announced = Self { service, subject, slots: None, heartbeat: None, wrong: Vec::new() };
        if let Some(text) = says(SLOTS) {
            announced.slots = text.trim().parse().ok().filter(|slots| *slots > 0);
            if announced.slots.is_none() {
                announced.wrong.push(format!("{SLOTS} = {text:?} is not a whole number from 1 on"));
            }
        }
        if let Some(text) = says(HEARTBEAT) {
            announced.heartbeat = duration::parse(text.trim()).ok().filter(|every| !every.is_zero());
            if announced.heartbeat.is_none() {
                announced.wrong.push(format!("{HEARTBEAT} = {text:?} is not a duration such as 30s"));
            }
        }
        announced
    }
}

pub(crate) const SLOTS: &str = "longshore.slots";
pub(crate) const HEARTBEAT: &str = "longshore.heartbeat";

#[derive(Default, Deserialize)]
#[serde(default)]
struct ServiceInfo {
    name: String,
    id: String,
    metadata: Option<HashMap<String, String>>,
    endpoints: Vec<InfoEndpoint>,
}

#[derive(Deserialize)]
struct InfoEndpoint {
    subject: String,
    metadata: Option<HashMap<String, String>>,
}

impl Backbone {
    /// Handler discovery: asks every NATS micro service what it announces. Services that answer within `wait` count.
    ///
    /// # Errors
    /// The answers' inbox cannot be subscribed to.
    pub async fn ask_handlers(&self, wait: Duration) -> Result<Vec<Announced>, Error> {
        let inbox = self.work().new_inbox();
        let mut answers = self.work().subscribe(inbox.clone()).await?;
        self.work().publish_with_reply(Subject::from_static("$SRV.INFO"), inbox, Bytes::new()).await;
        let prefix = self.names().work_prefix();
        let mut announced = Vec::new();
        let until = tokio::time::Instant::now() + wait;
        while let Ok(Some(message)) = tokio::time::timeout_at(until, answers.next()).await {
            let Ok(info) = serde_json::from_slice::<ServiceInfo>(&message.payload) else { continue };
            let service = info.metadata.unwrap_or_default();
            let called = format!("{} {}", info.name, info.id);
            for endpoint in info.endpoints.into_iter().filter(|endpoint| endpoint.subject.starts_with(&prefix)) {
                let own = endpoint.metadata.unwrap_or_default();
                let says = |key: &str| own.get(key).or_else(|| service.get(key)).cloned();
                announced.push(Announced::read(called.clone(), endpoint.subject, says));
            }
        }
        Ok(announced)
    }
}

/// Whether a subject, or everything that matches it, matches a subscription's subject.
pub fn falls_under(subject: &str, pattern: &str) -> bool {
    let (mut tokens, mut wanted) = (subject.split('.'), pattern.split('.'));
    loop {
        match (tokens.next(), wanted.next()) {
            (Some(_), Some(">")) | (None, None) => return true,
            (Some(token), Some(want)) if want == token || want == "*" && token != ">" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_announcement_does_not_count_and_is_said() {
        let announced = |key: &'static str, value: &'static str| {
            let says = move |asked: &str| (asked == key).then(|| value.to_owned());
            Announced::read("mailer 7".to_owned(), "s".to_owned(), says)
        };
        assert_eq!(announced(SLOTS, "3").slots, Some(3));
        assert_eq!(announced(HEARTBEAT, "5s").heartbeat, Some(Duration::from_secs(5)));
        for (key, value) in [(SLOTS, "many"), (SLOTS, "0"), (SLOTS, "-1"), (HEARTBEAT, "soon"), (HEARTBEAT, "0s")] {
            let found = announced(key, value);
            assert_eq!((found.slots, found.heartbeat, found.wrong.len()), (None, None, 1), "{key} {value}");
            assert!(found.wrong[0].starts_with(&format!("{key} = {value:?}")), "{:?}", found.wrong);
        }
    }

    #[test]
    fn subjects_fall_under_patterns_as_nats_has_it() {
        let subject = "longshore.work.acme.email.send";
        for yes in [subject, "longshore.work.*.email.send", "longshore.work.>", "longshore.work.acme.*.*"] {
            assert!(falls_under(subject, yes), "{yes}");
        }
        for no in ["longshore.work.acme.email", "longshore.work.acme.email.send.now", "longshore.work.*.*", "x.>"] {
            assert!(!falls_under(subject, no), "{no}");
        }
    }
}
