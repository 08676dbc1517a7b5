//! `longshore concurrency`: who has the slots of concurrency limits; frees some.

use clap::Subcommand;
use longshore_backbone::wire::api::{
    ConcurrencyFree, ConcurrencyLimits, ConcurrencyList, ConcurrencyRequest, ConcurrencyStatus, FreeRequest, Freed,
    SlotHolder,
};
use longshore_domain::{JobType, SmolStr, Tenant, Timestamp};

use super::client::Api;
use super::output::{self, GOOD};
use super::target::now;
use super::{Ended, Global, OfType, Usage};

/// So many runs of a holder are named.
const RUNS_NAMED: usize = 3;

#[derive(Debug, Subcommand)]
pub(crate) enum ConcurrencyCommand {
    /// Limits of which slots are taken, with the nodes that have them and the runs that work with them
    List(OfType),
    /// Take slots away from those that have them; what still works with one goes on (operators)
    Free {
        /// The job type, for example email.send
        #[arg(value_name = "TYPE", value_parser = super::name::<JobType>)]
        job_type: JobType,
        /// The slots of this concurrency key of the tenant [default: those of the type's own limit]
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// The same by the hash of the key, as the list shows it
        #[arg(long, value_name = "HASH", conflicts_with = "key")]
        key_hash: Option<SmolStr>,
        /// Those of this node only
        #[arg(long, value_name = "NODE")]
        node: Option<SmolStr>,
        /// Those of this session only, as the list with --json has it
        #[arg(long, value_name = "ID")]
        session: Option<SmolStr>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(global: &Global, command: ConcurrencyCommand) -> anyhow::Result<Ended> {
    match command {
        ConcurrencyCommand::List(OfType { job_type, json }) => {
            let request = ConcurrencyRequest { job_type, limit: Some(500), ..ConcurrencyRequest::default() };
            let asked = |cursor| ConcurrencyRequest { cursor, ..request.clone() };
            let taken = |page: ConcurrencyLimits| (page.limits, page.cursor);
            let limits = Api::connect(global).await?.all::<ConcurrencyList, _>(asked, taken).await?;
            let page = ConcurrencyLimits { cursor: None, limits };
            output::answer(&page, json, || output::say_table(&rows(page.limits.clone(), now()), &[]))
        }
        ConcurrencyCommand::Free { job_type, key: concurrency_key, key_hash, node, session, json } => {
            let has_key = concurrency_key.is_some() || key_hash.is_some();
            let tenant = has_key.then(|| Tenant::parse(&global.tenant)).transpose();
            let tenant = tenant.map_err(|_| Usage("--tenant must name the tenant whose key is meant".to_owned()))?;
            let request = FreeRequest { job_type, tenant, concurrency_key, key_hash, node, session };
            let shown = |Freed { freed, limit }| {
                let (what, left) = (what(&limit), taken(&limit));
                output::say(&format!("{what}: {GOOD}{freed} freed{GOOD:#}, {left} of {} taken", limit.max))
            };
            Api::connect(global).await?.show::<ConcurrencyFree>(request, json, shown).await
        }
    }
}

fn taken(limit: &ConcurrencyStatus) -> u32 {
    limit.holders.iter().map(|holder| holder.slots).sum()
}

fn what(limit: &ConcurrencyStatus) -> String {
    let ConcurrencyStatus { job_type, tenant, key_hash, .. } = limit;
    match (tenant, key_hash) {
        (Some(tenant), Some(hash)) => format!("{job_type}, key {hash} of {tenant}"),
        _ => format!("type {job_type}"),
    }
}

/// The runs of a holder, as far as they fit.
fn runs(holder: &SlotHolder) -> String {
    let Some(runs) = &holder.runs else { return "does not answer".to_owned() };
    let named: Vec<&str> = runs.iter().take(RUNS_NAMED).map(|run| run.run_id.as_str()).collect();
    let more = runs.len().saturating_sub(RUNS_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    named.join(", ") + &more
}

fn rows(mut limits: Vec<ConcurrencyStatus>, now: Timestamp) -> Vec<Vec<String>> {
    let of = |limit: &ConcurrencyStatus| (limit.job_type.clone(), limit.tenant.clone(), limit.key_hash.clone());
    limits.sort_by_key(of);
    let rows = limits.iter().flat_map(|limit| {
        limit.holders.iter().map(move |holder| {
            let back = match (&holder.runs, holder.until > now) {
                (Some(_), _) => "at their end".to_owned(),
                (None, true) => format!("in {}", output::span(now, holder.until)),
                (None, false) => "now".to_owned(),
            };
            [
                what(limit),
                format!("{} of {}", taken(limit), limit.max),
                holder.node.to_string(),
                holder.slots.to_string(),
                back,
                runs(holder),
            ]
        })
    });
    output::rows(["limit", "taken", "node", "slots", "back", "runs"], rows)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_shown_with_the_nodes_and_runs_that_have_their_slots() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let until = "2026-11-21T12:00:30Z";
        let runs: Vec<_> = (1..=5).map(|run| json!({"run_id": format!("main-p5-{run}"), "tenant": "acme"})).collect();
        let limits = [
            json!({"type": "report", "max": 9, "holders": [
                {"node": "n1", "session": "a", "slots": 6, "until": until, "runs": runs}]}),
            json!({"type": "call", "tenant": "acme", "key_hash": "0123456789abcdef", "max": 1, "holders": [
                {"node": "n2", "session": "b", "slots": 1, "until": until}]}),
        ];
        let limits = limits.into_iter().map(|limit| serde_json::from_value(limit).unwrap()).collect();
        assert_eq!(
            anstream::adapter::strip_str(&output::table(&rows(limits, now), &[])).to_string(),
            "\
limit                               taken   node  slots  back          runs
call, key 0123456789abcdef of acme  1 of 1  n2    1      in 30.0 s     does not answer
type report                         6 of 9  n1    6      at their end  main-p5-1, main-p5-2, main-p5-3 and 2 more
"
        );
    }
}
