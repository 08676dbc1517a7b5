//! Reads the user's files: receipts, calls and faults, one JSON object per line, one line at a time.
//!
//! An unreadable line ends the reading with its line number: a history judged by half of its receipts proves nothing.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use jiff::Timestamp;
use longshore_harness::history::{Accepted, Call, Interruption, Kept, Rules, Silence};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The defaults for a line that does not name its tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) tenant: &'a str,
}

/// The position at which a job was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) lane: String,
    pub(crate) sequence: u64,
}

/// A timestamp in the contract's format.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct At(Timestamp);

impl TryFrom<String> for At {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<At, jiff::Error> {
        text.parse().map(At)
    }
}

#[derive(Deserialize)]
struct Receipt {
    run_id: Option<String>,
    stream: Option<String>,
    #[serde(alias = "sequence")]
    seq: Option<u64>,
    tenant: Option<String>,
    at: Option<At>,
    kept: Option<String>,
}

#[derive(Deserialize)]
struct Called {
    run_id: String,
    #[serde(default = "first")]
    round: u32,
    attempt: u32,
    start: At,
    end: Option<At>,
    tenant: Option<String>,
    node: Option<String>,
}

#[derive(Deserialize)]
struct Fault {
    at: At,
    until: Option<At>,
    node: Option<String>,
}

fn first() -> u32 {
    1
}

/// Reads every receipt within `scope`, and where its job was stored if that can be derived.
pub(crate) fn receipts(
    path: &Path,
    scope: Scope<'_>,
    mut each: impl FnMut(Accepted, Option<Place>),
) -> anyhow::Result<()> {
    lines(path, |receipt: Receipt| {
        let Some(tenant) = scope.of(receipt.tenant) else { return Ok(()) };
        let place = receipt.stream.zip(receipt.seq).map(|(lane, sequence)| Place { lane, sequence });
        let run_id = match (receipt.run_id, &place) {
            (Some(run_id), _) => run_id,
            (None, Some(place)) => scope.derived(place)?,
            (None, None) => bail!("neither run_id nor stream and seq"),
        };
        let kept = match receipt.kept.as_deref() {
            None | Some("all") => Kept::All,
            Some("failures") => Kept::Failures,
            Some(other) => bail!("kept: {other:?} is neither \"all\" nor \"failures\""),
        };
        let at = receipt.at.map_or_else(Timestamp::now, |at| at.0);
        let place = place.or_else(|| scope.lane_of(&run_id));
        each(Accepted { tenant, run_id, at, kept }, place);
        Ok(())
    })
}

/// Reads every call within `scope`.
pub(crate) fn calls(path: &Path, scope: Scope<'_>, mut each: impl FnMut(Call)) -> anyhow::Result<()> {
    lines(path, |called: Called| {
        let Called { run_id, round, attempt, start, end, tenant, node } = called;
        let (start, end) = (start.0, end.map(|end| end.0));
        if let Some(tenant) = scope.of(tenant) {
            each(Call { tenant, run_id, round, attempt, start, end, node });
        }
        Ok(())
    })
}

/// Reads every fault: a death, or a silence that had an end. Without a lease to judge it by, a silence counts as a
/// death.
pub(crate) fn faults(path: &Path, rules: &mut Rules) -> anyhow::Result<()> {
    lines(path, |Fault { at: At(at), until, node }| {
        match until {
            Some(At(until)) if rules.lease.is_some() => rules.silences.push(Silence { node, from: at, until }),
            _ => rules.interruptions.push(Interruption { node, at }),
        }
        Ok(())
    })
}

fn lines<T: DeserializeOwned>(path: &Path, mut each: impl FnMut(T) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.with_context(|| format!("cannot read {}", path.display()))?;
        if line.trim().is_empty() {
            continue;
        }
        let read = serde_json::from_str(&line).map_err(anyhow::Error::from).and_then(&mut each);
        read.with_context(|| format!("{}:{number}", path.display()))?;
    }
    Ok(())
}

impl Scope<'_> {
    /// The tenant of a line; `None` if the line is ignored.
    fn of(&self, said: Option<String>) -> Option<String> {
        match (self.tenant, said) {
            ("*", said) => Some(said.unwrap_or_else(|| "default".to_owned())),
            (tenant, Some(said)) => (said == tenant).then_some(said),
            (tenant, None) => Some(tenant.to_owned()),
        }
    }

    /// The run id of a job that was published bare: lane `LONGSHORE_JOBS_main_P5`, sequence 7 gives `main-p5-7`.
    fn derived(&self, place: &Place) -> anyhow::Result<String> {
        let Place { lane, sequence } = place;
        let prefix = format!("{}_JOBS_", self.namespace.to_uppercase());
        let named = lane.strip_prefix(&prefix).and_then(|rest| rest.rsplit_once("_P"));
        let (queue, priority) = named.ok_or_else(|| anyhow!("{lane} is not a lane of namespace {}", self.namespace))?;
        Ok(format!("{queue}-p{priority}-{sequence}"))
    }

    /// The reverse: where the job of a derived run id was stored.
    fn lane_of(&self, run_id: &str) -> Option<Place> {
        let (rest, sequence) = run_id.rsplit_once('-')?;
        let (queue, priority) = rest.rsplit_once("-p")?;
        let priority: u8 = priority.parse().ok()?;
        let lane = format!("{}_JOBS_{queue}_P{priority}", self.namespace.to_uppercase());
        Some(Place { lane, sequence: sequence.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope<'_> = Scope { namespace: "longshore", tenant: "default" };

    #[test]
    fn a_publish_acknowledgement_names_its_run() {
        let place = Place { lane: "LONGSHORE_JOBS_big-mail_P5".to_owned(), sequence: 7 };
        assert_eq!(SCOPE.derived(&place).unwrap(), "big-mail-p5-7");
        assert_eq!(SCOPE.lane_of("big-mail-p5-7"), Some(place));
        assert_eq!(SCOPE.lane_of("order-17"), None);
        assert!(SCOPE.derived(&Place { lane: "OTHER".to_owned(), sequence: 7 }).is_err());
    }

    #[test]
    fn a_line_is_of_the_tenant_that_is_asked_for() {
        assert_eq!(SCOPE.of(None).as_deref(), Some("default"));
        assert_eq!(SCOPE.of(Some("acme".to_owned())), None);
        let all = Scope { tenant: "*", ..SCOPE };
        assert_eq!(all.of(Some("acme".to_owned())).as_deref(), Some("acme"));
    }

    #[test]
    fn a_broken_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("receipts.jsonl");
        std::fs::write(&path, "{\"run_id\":\"a\"}\n\n{\"stream\":\"LONGSHORE_JOBS_main_P5\"}\n").unwrap();
        let mut read = Vec::new();
        let error = receipts(&path, SCOPE, |accepted, _| read.push(accepted.run_id)).unwrap_err();
        assert_eq!(read, ["a"]);
        assert!(format!("{error:#}").ends_with("receipts.jsonl:3: neither run_id nor stream and seq"), "{error:#}");
    }
}
