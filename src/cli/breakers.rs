//! `longshore breakers`: lists circuit breakers; closes or opens one.

use std::time::Duration;

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    BreakerState, BreakerStatus, Breakers, BreakersList, BreakersRequest, BreakersReset, BreakersTrip, ResetRequest,
    TripRequest,
};
use longshore_domain::{JobType, SmolStr, Tenant, Timestamp, duration};

use super::client::Api;
use super::output::{self, BAD, GOOD, PENDING};
use super::target::now;
use super::{Ended, Global, OfType, Usage};

#[derive(Debug, Subcommand)]
pub(crate) enum BreakersCommand {
    /// Breakers that have seen failures lately, or are not closed
    List(OfType),
    /// Close a breaker: its jobs start again (operators)
    Reset {
        #[command(flatten)]
        which: WhichBreaker,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Open a breaker: its jobs wait (operators)
    Trip {
        #[command(flatten)]
        which: WhichBreaker,
        /// How long it stays open [default: the cool_down of the type]
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
        lasts: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct WhichBreaker {
    /// The job type, for example email.send
    #[arg(value_name = "TYPE", value_parser = super::name::<JobType>)]
    job_type: JobType,
    /// The limit key, of a type that has a breaker per key
    #[arg(long, value_name = "KEY")]
    key: Option<SmolStr>,
}

pub(crate) async fn run(global: &Global, command: BreakersCommand) -> anyhow::Result<Ended> {
    match command {
        BreakersCommand::List(OfType { job_type, json }) => {
            let request = BreakersRequest { job_type, limit: Some(500), ..BreakersRequest::default() };
            let asked = |cursor| BreakersRequest { cursor, ..request.clone() };
            let taken = |page: Breakers| (page.breakers, page.cursor);
            let breakers = Api::connect(global).await?.all::<BreakersList, _>(asked, taken).await?;
            let page = Breakers { breakers, cursor: None };
            output::answer(&page, json, || output::say_table(&rows(page.breakers.clone(), now()), &[4]))
        }
        BreakersCommand::Reset { which: WhichBreaker { job_type, key }, json } => {
            let request = ResetRequest { tenant: tenant(global)?, job_type, key };
            Api::connect(global).await?.show::<BreakersReset>(request, json, show).await
        }
        BreakersCommand::Trip { which: WhichBreaker { job_type, key }, lasts, json } => {
            let until = lasts.map(|lasts| now().plus(lasts));
            let request = TripRequest { tenant: tenant(global)?, job_type, key, until };
            Api::connect(global).await?.show::<BreakersTrip>(request, json, show).await
        }
    }
}

fn tenant(global: &Global) -> Result<Tenant, Usage> {
    Tenant::parse(&global.tenant).map_err(|_| Usage("--tenant must name the tenant whose breaker is meant".to_owned()))
}

fn show(breaker: BreakerStatus) -> anyhow::Result<()> {
    output::say(&said(&breaker, now()))
}

/// A breaker in one line.
fn said(breaker: &BreakerStatus, now: Timestamp) -> String {
    let style = match breaker.state.known() {
        Some(BreakerState::Closed) => GOOD,
        Some(BreakerState::HalfOpen) => PENDING,
        Some(BreakerState::Open) | None => BAD,
    };
    let until = breaker.until.map(|until| format!(" for {}", output::span(now, until))).unwrap_or_default();
    format!("{}: {style}{}{style:#}{until}", breaker.job_type, breaker.state)
}

fn rows(mut breakers: Vec<BreakerStatus>, now: Timestamp) -> Vec<Vec<String>> {
    breakers.sort_by(|one, other| {
        (&one.tenant, &one.job_type, &one.key).cmp(&(&other.tenant, &other.job_type, &other.key))
    });
    let row = |breaker: BreakerStatus| {
        let note = match (breaker.state.known(), breaker.until) {
            (Some(BreakerState::Open), Some(until)) if until > now => format!("for {}", output::span(now, until)),
            (Some(BreakerState::Open), _) => "waits for a job".to_owned(),
            (Some(BreakerState::HalfOpen), _) => format!("{} probes, {} good", breaker.probes, breaker.successes),
            _ => String::new(),
        };
        [
            breaker.tenant.to_string(),
            breaker.job_type.to_string(),
            breaker.key.map(|key| output::cut(&key, 40)).unwrap_or_default(),
            breaker.state.to_string(),
            output::number(breaker.failures.into()),
            output::age(breaker.since, now),
            note,
        ]
    };
    output::rows(["tenant", "type", "key", "state", "failures", "since", ""], breakers.into_iter().map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn breakers_are_shown_with_what_they_wait_for() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let breaker = |job_type: &str, state: &str| {
            json!({"tenant": "acme", "type": job_type, "state": state, "failures": 0, "probes": 1, "successes": 2,
                "since": "2026-11-21T11:59:00Z", "times_opened": 1})
        };
        let mut open = breaker("mail.send", "open");
        open["until"] = json!("2026-11-21T12:00:30Z");
        open["key"] = json!("a.example");
        let mut cooled = breaker("call", "open");
        cooled["until"] = json!("2026-11-21T12:00:00Z");
        let mut closed = breaker("a", "closed");
        closed["failures"] = json!(3);
        let all = [open, cooled, breaker("b", "half_open"), closed];
        let all: Vec<BreakerStatus> = all.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
        let shown = |text: &str| anstream::adapter::strip_str(text).to_string();
        assert_eq!(shown(&said(&all[0], now)), "mail.send: open for 30.0 s");
        assert_eq!(
            shown(&output::table(&rows(all, now), &[4])),
            "\
tenant  type       key        state      failures  since
acme    a                     closed            3  1 min
acme    b                     half_open         0  1 min  1 probes, 2 good
acme    call                  open              0  1 min  waits for a job
acme    mail.send  a.example  open              0  1 min  for 30.0 s
"
        );
    }
}
