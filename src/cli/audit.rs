//! `longshore audit`: what was asked of the API beyond reading and submitting.

use clap::Args;
use longshore_backbone::wire::api::{AuditEntry, AuditList, AuditPage, AuditRequest, OPERATOR};
use longshore_domain::Timestamp;

use super::client::Api;
use super::output;
use super::{Ended, Global};

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Every tenant's entries and those of operators, for operators: the same as --tenant _all
    #[arg(long)]
    all: bool,
    /// What this tenant's callers or, with --all, any did under this endpoint, dlq.replay for example, or a whole
    /// group, dlq
    #[arg(long, value_name = "ENDPOINT")]
    action: Option<String>,
    /// Those since this time, 2027-01-31T09:30:00Z or 1h for an hour ago
    #[arg(long, value_name = "TIME", value_parser = super::target::moment)]
    since: Option<Timestamp>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: AuditArguments) -> anyhow::Result<Ended> {
    let AuditArguments { all: is_operator, action, since, json } = arguments;
    let tenant = if is_operator { OPERATOR.to_owned() } else { global.tenant.clone() };
    let global = &Global { tenant, ..global.clone() };
    let api = Api::connect(global).await?;
    let asked = |cursor| AuditRequest { since, limit: Some(500), cursor };
    let entries = api.all::<AuditList, _>(asked, |AuditPage { mut entries, cursor }| {
        entries.retain(|entry| action.as_deref().is_none_or(|action| is_of(&entry.endpoint, action)));
        (entries, cursor)
    });
    let page = AuditPage { entries: entries.await?, cursor: None };
    output::answer(&page, json, || {
        let heading = ["at", "tenant", "by (claimed)", "from", "action", "", "what"];
        output::say_fitted(&output::rows(heading, page.entries.iter().map(row)), &[], &[3, 1])?; // from, tenant
        if global.tenant != OPERATOR {
            let tenant = &global.tenant;
            anstream::eprintln!("asked under tenant {tenant}; --all shows what operators and other tenants asked, too");
        }
        Ok(())
    })
}

/// Whether an endpoint is this one, or one of this group.
fn is_of(endpoint: &str, action: &str) -> bool {
    endpoint.strip_prefix(action).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn row(entry: &AuditEntry) -> [String; 7] {
    let what = match (&entry.error, &entry.outcome, &entry.request) {
        (Some(error), ..) => format!("{} {}", error.code, error.message),
        (None, Some(outcome), _) => outcome.get().to_owned(),
        (None, None, Some(request)) => request.get().to_owned(),
        (None, None, None) => String::new(),
    };
    [
        entry.at.to_string(),
        entry.tenant.clone(),
        entry.by.clone().unwrap_or_default(),
        entry.from.clone(),
        entry.endpoint.clone(),
        entry.stage.clone(),
        entry.reason.as_ref().map_or_else(|| what.clone(), |reason| format!("{what}, because: {reason}")),
    ]
}
