//! `longshore limits`: what rate limits allow and what is left of them; sets one for the whole cluster, or resets it.

use std::time::Duration;

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    ApiError, LimitChanged, LimitStatus, LimitValues, Limits, LimitsList, LimitsRequest, LimitsReset, LimitsSet,
    ResetLimitRequest, SetBy, SetLimitRequest,
};
use longshore_domain::limit::{RateLimit, Scope, Window};
use longshore_domain::run::whole_millis;
use longshore_domain::{DurationText, JobType, SmolStr, Tenant, Timestamp, duration};

use super::client::Api;
use super::output::{self, GOOD};
use super::target::{now, one_of};
use super::{Ended, Global, Json};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// What limits allow, what is left of them, and where they were set
    List(Json),
    /// Another limit on all nodes, from now on and after restarts (operators)
    Set {
        #[command(flatten)]
        which: WhichLimit,
        /// Tokens in each span of time: one for each job, unless it says otherwise
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// The span of time
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
        per: Duration,
        /// At most so many at once after a quiet time [default: as many as --rate]
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
        burst: Option<u32>,
        /// How they are counted
        #[arg(long, value_name = "HOW", default_value = "bucket", value_parser = one_of::<Window>("one of bucket, fixed, sliding"))]
        window: Window,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// The configured limit again (operators)
    Reset {
        #[command(flatten)]
        which: WhichLimit,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct WhichLimit {
    /// The limit of this job type, for example email.send
    #[arg(long = "type", value_name = "TYPE", value_parser = super::name::<JobType>)]
    job_type: Option<JobType>,
    /// The limit of this name, which types share
    #[arg(long, value_name = "NAME")]
    name: Option<SmolStr>,
    /// The limit of what this tenant submits
    #[arg(long, value_name = "TENANT", value_parser = tenant)]
    of_tenant: Option<Tenant>, // not `tenant`, which is the global option
}

fn tenant(text: &str) -> Result<Tenant, String> {
    Tenant::parse(text).map_err(|error| error.to_string())
}

pub(crate) async fn run(global: &Global, command: LimitsCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        LimitsCommand::Set { which, rate, per, burst, window, json } => {
            let WhichLimit { job_type, name, of_tenant: tenant } = which;
            let (per_ms, window) = (Some(whole_millis(per)), Some(window));
            let request = SetLimitRequest { job_type, name, tenant, rate, per_ms, burst, window };
            api.show::<LimitsSet>(request, json, show).await
        }
        LimitsCommand::Reset { which: WhichLimit { job_type, name, of_tenant: tenant }, json } => {
            api.show::<LimitsReset>(ResetLimitRequest { job_type, name, tenant }, json, show).await
        }
        LimitsCommand::List(Json { json }) => {
            let page = Limits { limits: all(&api).await?, cursor: None };
            output::answer(&page, json, || output::say_table(&rows(&page.limits, now()), &[2, 3]))
        }
    }
}

async fn all(api: &Api) -> Result<Vec<LimitStatus>, ApiError> {
    let asked = |cursor| LimitsRequest { limit: Some(500), cursor };
    api.all::<LimitsList, _>(asked, |page| (page.limits, page.cursor)).await
}

pub(crate) async fn set_at_run_time(api: &Api) -> anyhow::Result<Vec<(Scope, RateLimit)>> {
    let limits = all(api).await?.into_iter();
    let set = limits.filter(|limit| limit.origin.as_ref().is_some_and(|by| by.known() == Some(&SetBy::RunTime)));
    let read = set.filter_map(|LimitStatus { job_type, name, tenant, values, .. }| {
        let LimitValues { burst, per_ms, rate, window } = values?;
        let (per_ms, window) = (Some(per_ms), Some(window));
        let asked = SetLimitRequest { job_type, name, tenant, rate, per_ms, burst, window };
        Some((asked.scope().ok()?, asked.limit().ok()?))
    });
    Ok(read.collect())
}

fn show(LimitChanged { limit, unconfirmed }: LimitChanged) -> anyhow::Result<()> {
    output::say_changed(&said(&limit), &unconfirmed)
}

/// A limit in one line.
fn said(limit: &LimitStatus) -> String {
    let values = limit.values.map_or_else(|| "no limit".to_owned(), |values| written(&values));
    format!("{}: {GOOD}{values}{GOOD:#} ({})", what(limit), origin(limit))
}

fn what(limit: &LimitStatus) -> String {
    match (&limit.job_type, &limit.name, &limit.tenant) {
        (Some(job_type), ..) => format!("type {job_type}"),
        (_, Some(name), _) => format!("name {name}"),
        (_, _, Some(tenant)) => format!("tenant {tenant}"),
        _ => String::new(),
    }
}

fn origin(limit: &LimitStatus) -> String {
    let configured =
        || limit.configured.map(|values| format!("; configured: {}", written(&values))).unwrap_or_default();
    match limit.origin.as_ref().map(|origin| (origin.known(), origin.to_string())) {
        Some((Some(SetBy::RunTime), _)) => format!("set at run time{}", configured()),
        Some((Some(SetBy::Configuration), _)) => limit.set_in.clone().unwrap_or_else(|| "configuration".to_owned()),
        Some((None, word)) => word,
        None => "nothing is configured".to_owned(),
    }
}

/// `100 per 1s, burst 200`.
fn written(values: &LimitValues) -> String {
    let per = DurationText(Duration::from_millis(values.per_ms));
    let how = match (values.window, values.burst) {
        (Window::Bucket, Some(burst)) if burst != values.rate => format!(", burst {burst}"),
        (Window::Bucket, _) => String::new(),
        (Window::Fixed, _) => ", fixed windows".to_owned(),
        (Window::Sliding, _) => ", sliding window".to_owned(),
    };
    format!("{} per {per}{how}", values.rate)
}

fn rows(limits: &[LimitStatus], now: Timestamp) -> Vec<Vec<String>> {
    let row = |limit: &LimitStatus| {
        let next = limit.next_at.filter(|at| *at > now).map(|at| format!("in {}", output::span(now, at)));
        [
            what(limit),
            limit.values.map(|values| written(&values)).unwrap_or_default(),
            limit.left.map(output::number).unwrap_or_default(),
            output::number(limit.waiting),
            next.unwrap_or_else(|| "at once".to_owned()),
            origin(limit),
        ]
    };
    output::rows(["limit", "allows", "left", "waiting", "next", "set"], limits.iter().map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_shown_with_what_is_left_and_where_they_were_set() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let limits = [
            json!({"type": "mail.send", "values": {"rate": 5, "per_ms": 60_000, "burst": 9, "window": "bucket"},
                "configured": {"rate": 100, "per_ms": 1_000, "burst": 100, "window": "bucket"}, "holders": 1, "left": 0,
                "next_at": "2026-11-21T12:00:12Z", "origin": "run_time", "waiting": 1_200}),
            json!({"tenant": "acme", "values": {"rate": 5, "per_ms": 1_000, "window": "fixed"}, "holders": 0, "left": 5,
                "origin": "configuration", "set_in": "longshore.toml:7", "waiting": 0}),
        ];
        let limits: Vec<LimitStatus> = limits.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
        assert_eq!(
            anstream::adapter::strip_str(&output::table(&rows(&limits, now), &[2, 3])).to_string(),
            "\
limit           allows                   left  waiting  next       set
type mail.send  5 per 1m, burst 9           0    1,200  in 12.0 s  set at run time; configured: 100 per 1s
tenant acme     5 per 1s, fixed windows     5        0  at once    longshore.toml:7
"
        );
    }
}
