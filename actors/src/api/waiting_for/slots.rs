//! Who has the slots that a run waits for, in words: which runs work with them on which nodes, and until when the slots
//! of a node count that gives no sign.

use longshore_backbone::Error;
use longshore_backbone::wire::api::{ConcurrencyStatus, SlotHolder, SlotRun};
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::concurrency::ConcurrencyId;
use longshore_domain::{Run, RunState};

use crate::api::{Api, concurrency};
use crate::ports::WaitingPorts as _;
use crate::runtime::kind::Kind;

/// So many are named.
const NAMED: usize = 3;

/// Who has what the run waits for; `None`: that is not known, or all of it is free.
///
/// # Errors
/// Something cannot be read.
pub(super) async fn taken_by(api: &Api, run: &Run) -> Result<Option<String>, Error> {
    let kind = Kind { tenant: run.tenant.clone(), job_type: run.job_type.clone(), key: key_of(api, run).await? };
    for id in api.slots.limits_of(&kind) {
        let status = concurrency::of(api, &id, &run.tenant).await?;
        let taken: u32 = status.holders.iter().map(|holder| holder.slots).sum();
        if taken >= status.max && !status.holders.is_empty() {
            return Ok(in_words(&status, run));
        }
    }
    line_of(api, run, &kind).await
}

/// The keys of a run's job: its record does not say them, so its job is looked for.
async fn key_of(api: &Api, run: &Run) -> Result<KindKey, Error> {
    if let Some(key) = run.turn.as_ref().and_then(|turn| KindKey::read(&turn.key)) {
        return Ok(key);
    }
    if let Some(kind) = api.waiting.kind_of(run) {
        return Ok(kind.key);
    }
    // It cannot be read now: then it may be parked.
    if let Ok(Some(waiting)) = api.waiting(&run.tenant, &run.run_id).await {
        return Ok(KindKey::of(waiting.job.options.as_deref()));
    }
    Ok(api.backbone.parked_key(run).await?.unwrap_or_default())
}

/// The run that was let in to the line of its key, if that has one.
async fn line_of(api: &Api, run: &Run, kind: &Kind) -> Result<Option<String>, Error> {
    let has_lines = api.policies.of(&run.job_type).has_lines();
    let Some(key) = kind.key.concurrency_key().filter(|_| has_lines) else { return Ok(None) };
    let key = Some((run.tenant.clone(), key.into()));
    let (line, _) = api.backbone.slots().line(&ConcurrencyId { job_type: run.job_type.clone(), key }).await?;
    for member in line.inside(|_| false).filter(|member| member.run_id != run.run_id) {
        let found = api.backbone.read_record(&run.tenant, &member.run_id).await?;
        if let Some(found) = found.filter(|found| !found.run.has_ended(member.round)) {
            return Ok(Some(format!("run {} of its key has not ended ({})", member.run_id, stands(&found.run))));
        }
    }
    Ok(None)
}

/// How a run stands, and on which node if it runs.
pub(super) fn stands(run: &Run) -> String {
    let state = run.state.as_str();
    match &run.node {
        Some(node) if run.state == RunState::Running => format!("{state} on node {node}"),
        _ => state.to_owned(),
    }
}

/// `None`: the run itself has one of the slots by now.
fn in_words(status: &ConcurrencyStatus, run: &Run) -> Option<String> {
    let is_own = |of: &SlotRun| of.run_id == run.run_id && of.tenant == run.tenant;
    if status.holders.iter().filter_map(|holder| holder.runs.as_ref()).flatten().any(is_own) {
        return None;
    }
    let mut said: Vec<String> = status.holders.iter().take(NAMED).map(holder_in_words).collect();
    if status.holders.len() > NAMED {
        said.push(format!("{} more nodes", status.holders.len() - NAMED));
    }
    Some(said.join("; "))
}

fn holder_in_words(SlotHolder { node, runs, until, .. }: &SlotHolder) -> String {
    let Some(runs) = runs else { return format!("node {node}, which does not answer, until {until}") };
    let named: Vec<&str> = runs.iter().take(NAMED).map(|run| run.run_id.as_str()).collect();
    let more = runs.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    match &named[..] {
        [] => format!("node {node}"),
        [run] => format!("run {run} on node {node}"),
        named => format!("runs {}{more} on node {node}", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_holders_of_slots_are_named_with_their_runs_or_until_when_they_count() {
        let until = Timestamp::from_millis(1_000);
        let runs = |ids: &[&str]| ids.iter().map(|id| json!({"run_id": id, "tenant": "t"})).collect::<Vec<_>>();
        let holder =
            |runs: serde_json::Value| json!({"node": "n1", "session": "s", "slots": 1, "until": until, "runs": runs});
        let says = |holder: serde_json::Value| holder_in_words(&serde_json::from_value(holder).unwrap());
        assert_eq!(says(holder(json!(runs(&["a"])))), "run a on node n1");
        assert_eq!(says(holder(json!(runs(&["a", "b", "c", "d", "e"])))), "runs a, b, c and 2 more on node n1");
        assert_eq!(says(holder(json!([]))), "node n1");
        let silent = "node n1, which does not answer, until 1970-01-01T00:00:01.000Z";
        assert_eq!(says(holder(json!(null))), silent);
        let of = |holds: serde_json::Value, count: usize| ConcurrencyStatus {
            holders: vec![serde_json::from_value(holder(holds)).unwrap(); count],
            key_hash: None,
            max: 1,
            tenant: None,
            job_type: longshore_domain::JobType::parse("t").unwrap(),
        };
        let asked = longshore_domain::Run::new(&crate::tests::job("t", "a"), 1, until);
        let named = in_words(&of(json!([]), 4), &asked);
        assert_eq!(named.as_deref(), Some("node n1; node n1; node n1; 1 more nodes"));
        let own = json!([{"run_id": "a", "tenant": asked.tenant}]);
        assert_eq!(in_words(&of(own, 1), &asked), None, "it does not wait for itself");
    }
}
