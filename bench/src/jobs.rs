//! Jobs for measuring: their subjects, their bodies of 256 bytes, and bare publishing.

use std::time::Duration;

use anyhow::{Context, bail};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::StreamExt;

/// Unconfirmed publishes allowed at once.
const WINDOW: u64 = 1_024;
/// How long an acknowledgement may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a body.
const SIZE: usize = 256;

/// The subject of a job of this type and priority.
pub(crate) fn subject(priority: u8, job_type: &str) -> String {
    format!("longshore.jobs.default.main.p{priority}.{job_type}")
}

/// The subjects to which jobs go in turn: one priority, or all nine.
pub(crate) fn subjects(spread: bool) -> Vec<String> {
    let priorities = if spread { 1..=9 } else { 5..=5 };
    priorities.map(|priority| subject(priority, "noop")).collect()
}

/// The same of so many tenants, of each in turn.
pub(crate) fn subjects_of(spread: bool, tenants: u64) -> Vec<String> {
    let of = |tenant: u64| {
        let name = if tenant == 0 { "default".to_owned() } else { format!("t{tenant}") };
        subjects(spread).into_iter().map(move |subject| subject.replacen("default", &name, 1))
    };
    (0..tenants).flat_map(of).collect()
}

/// A JSON body of 256 bytes that begins with these fields.
pub(crate) fn body(fields: &str) -> Bytes {
    let comma = if fields.is_empty() { "" } else { "," };
    let frame = format!("{{{fields}{comma}\"pad\":\"\"}}").len();
    let pad = "x".repeat(SIZE.saturating_sub(frame));
    Bytes::from(format!("{{{fields}{comma}\"pad\":\"{pad}\"}}"))
}

/// Publishes `count` jobs, each confirmed, with at most 1,024 unconfirmed at a time. All acknowledgements arrive at one
/// inbox, which is the cheapest way.
pub(crate) async fn publish(client: &Client, subjects: &[String], body: &Bytes, count: u64) -> anyhow::Result<()> {
    publish_keyed(client, subjects, &[], body, count).await
}

/// The same with these concurrency keys in turn.
pub(crate) async fn publish_keyed(
    client: &Client,
    subjects: &[String],
    keys: &[String],
    body: &Bytes,
    count: u64,
) -> anyhow::Result<()> {
    let mut keys = keys.iter().cycle();
    let header = |_| Some(("Longshore-Concurrency-Key", keys.next()?.clone()));
    publish_each(client, subjects, header, body, count).await
}

/// The same with a header of its own for each job, by the job's number from 1 on, if there is one for it.
pub(crate) async fn publish_each(
    client: &Client,
    subjects: &[String],
    mut header: impl FnMut(u64) -> Option<(&'static str, String)>,
    body: &Bytes,
    count: u64,
) -> anyhow::Result<()> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    let mut turns = subjects.iter().cycle();
    let (mut sent, mut stored) = (0, 0);
    while stored < count {
        while sent < count && sent - stored < WINDOW {
            let subject = turns.next().context("there is a subject")?.clone();
            sent += 1;
            if let Some((name, value)) = header(sent) {
                let mut headers = HeaderMap::new();
                headers.insert(name, value);
                client.publish_with_reply_and_headers(subject, inbox.clone(), headers, body.clone()).await?;
            } else {
                client.publish_with_reply(subject, inbox.clone(), body.clone()).await?;
            }
        }
        let answer = tokio::time::timeout(ANSWER_WITHIN, answers.next()).await;
        let answer = answer.ok().flatten().with_context(|| format!("only {stored} of {count} were confirmed"))?;
        confirmed(&answer)?;
        stored += 1;
    }
    answers.unsubscribe().await?;
    Ok(())
}

/// Publishes `count` jobs one after the other, each confirmed before the next.
pub(crate) async fn publish_singly(client: &Client, subject: &str, body: &Bytes, count: u64) -> anyhow::Result<()> {
    for _ in 0..count {
        confirmed(&client.request(subject.to_owned(), body.clone()).await?)?;
    }
    Ok(())
}

/// Whether JetStream's answer says that the message is stored.
fn confirmed(answer: &async_nats::Message) -> anyhow::Result<()> {
    let text = String::from_utf8_lossy(&answer.payload);
    if answer.status.is_some() || !text.contains("\"seq\"") || text.contains("\"error\"") {
        bail!("not stored: {:?} {text}", answer.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_256_bytes() {
        for fields in ["", "\"ms\":50"] {
            let body = body(fields);
            assert_eq!(body.len(), 256);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
        }
    }
}
