//! `longshore faults`: has attempts meet faults on purpose, lists these, and ends them.

use std::time::Duration;

use clap::Subcommand;
use longshore_backbone::wire::api::{
    ClearFaultsRequest, FaultSet, FaultStatus, Faults, FaultsClear, FaultsCleared, FaultsList, FaultsSet, Nothing,
    SetFaultRequest,
};
use longshore_domain::fault::FaultKind;
use longshore_domain::run::whole_millis;
use longshore_domain::{JobType, SmolStr, Timestamp, duration};

use super::client::Api;
use super::output::{self, BAD};
use super::target::now;
use super::{Ended, Global, Json};

#[derive(Debug, Subcommand)]
pub(crate) enum FaultsCommand {
    /// The faults that are set (operators)
    List(Json),
    /// Have attempts of a type meet a fault, in place of the one of that kind (operators)
    Set {
        /// The job type, for example email.send
        #[arg(value_name = "TYPE", value_parser = super::name::<JobType>)]
        job_type: JobType,
        /// latency, retryable, permanent, panic, hang, lost_heartbeat, fail_after_work, fail_at_step or storm
        #[arg(value_name = "KIND", value_parser = kind)]
        kind: FaultKind,
        /// How long it lasts: 24 hours at most
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse, required_unless_present = "until", conflicts_with = "until")]
        lasts: Option<Duration>,
        /// When it ends
        #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
        until: Option<Timestamp>,
        /// The share of the attempts that meet it, above 0 and at most 1 [default: 1]
        #[arg(long, value_name = "SHARE")]
        probability: Option<f64>,
        /// How much later the handler is called (latency)
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        delay: Option<Duration>,
        /// At which step the attempt fails (fail_at_step)
        #[arg(long, value_name = "NAME")]
        step: Option<SmolStr>,
        /// On each node it ends after so many attempts
        #[arg(long, value_name = "NUMBER")]
        limit: Option<u64>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// End faults: those of a type, of a kind, or all (operators)
    Clear {
        /// Those of this job type
        #[arg(value_name = "TYPE", value_parser = super::name::<JobType>)]
        job_type: Option<JobType>,
        /// Those of this kind
        #[arg(long, value_name = "KIND", value_parser = kind)]
        kind: Option<FaultKind>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

fn kind(word: &str) -> Result<FaultKind, String> {
    FaultKind::parse(word).ok_or_else(|| format!("one of {}", FaultKind::NAMES.join(", ")))
}

pub(crate) async fn run(global: &Global, command: FaultsCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        FaultsCommand::List(Json { json }) => {
            let heading = ["type", "kind", "of", "share", "limit", "until"];
            let shown = |Faults { faults }| output::say_table(&output::rows(heading, faults.into_iter().map(row)), &[]);
            api.show::<FaultsList>(Nothing {}, json, shown).await
        }
        FaultsCommand::Set { job_type, kind, lasts, until, probability, delay, step, limit, json } => {
            let until = until.unwrap_or_else(|| now().plus(lasts.unwrap_or_default()));
            let delay_ms = delay.map(whole_millis);
            let request = SetFaultRequest { job_type, kind, probability, delay_ms, step, until, limit };
            let shown = |FaultSet { fault, unconfirmed }| {
                let row: Vec<String> = row(fault).into_iter().filter(|cell| !cell.is_empty()).collect();
                output::say_changed(&format!("{BAD}set{BAD:#}: {}", row.join("  ")), &unconfirmed)
            };
            api.show::<FaultsSet>(request, json, shown).await
        }
        FaultsCommand::Clear { job_type, kind, json } => {
            let shown = |FaultsCleared { faults, unconfirmed }| {
                let ended = faults.iter().map(|fault| format!("ended: {} {}", fault.job_type, fault.kind));
                let ended = ended.collect::<Vec<_>>().join("\n");
                output::say_changed(if ended.is_empty() { "no such fault is set" } else { &ended }, &unconfirmed)
            };
            api.show::<FaultsClear>(ClearFaultsRequest { job_type, kind }, json, shown).await
        }
    }
}

fn row(fault: FaultStatus) -> [String; 6] {
    let FaultStatus { job_type, kind, delay_ms, step, probability, limit, until } = fault;
    let of = delay_ms.map(output::took).or_else(|| step.as_ref().map(ToString::to_string));
    let limit = limit.map(|limit| format!("{} times a node", output::number(limit)));
    let [of, limit] = [of, limit].map(Option::unwrap_or_default);
    [job_type.to_string(), kind.to_string(), of, format!("{} %", probability * 100.0), limit, until.to_string()]
}
