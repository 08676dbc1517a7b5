//! `longshore runs complete`, `fail` and `progress`: end an attempt that its handler has detached, or give a sign of
//! it.

use std::time::Duration;

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    CompleteRequest, FailRequest, Goes, ProgressRequest, RunsComplete, RunsFail, RunsProgress,
};
use longshore_domain::run::whole_millis;
use longshore_domain::{RunId, duration};
use serde_json::value::RawValue;

use super::client::Api;
use super::{Ended, Global, output, record};

/// How long a node waits for the reply of an attempt's handler.
const LATE: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub(crate) enum LateCommand {
    /// End the detached attempt of a run: it has succeeded
    Complete {
        #[command(flatten)]
        late: Late,
        /// The run's result, as JSON
        #[arg(long, value_name = "JSON", value_parser = json)]
        result: Option<Box<RawValue>>,
    },
    /// End the detached attempt of a run: it has failed
    Fail {
        #[command(flatten)]
        late: Late,
        /// What went wrong
        #[arg(long, value_name = "TEXT")]
        error: String,
        /// Do not try again
        #[arg(long)]
        permanent: bool,
        /// The delay before the next attempt, in place of the back-off
        #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "permanent")]
        retry_after: Option<Duration>,
    },
    /// Give a sign of the detached attempt of a run: its time counts anew
    Progress {
        #[command(flatten)]
        late: Late,
        /// How far it is, as JSON
        #[arg(value_name = "JSON", value_parser = json)]
        progress: Option<Box<RawValue>>,
    },
}

/// An attempt that ends later than its handler replied.
#[derive(Debug, Args)]
pub(crate) struct Late {
    /// The run's id
    #[arg(value_parser = super::name::<RunId>)]
    id: RunId,
    /// The attempt's token, as its handler got it
    #[arg(long, env = "LONGSHORE_ATTEMPT_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: String,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

fn json(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))
}

pub(crate) async fn run(global: &Global, command: LateCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        LateCommand::Complete { late: Late { id: run_id, token, json }, result } => {
            let asked = CompleteRequest { run_id, tenant: None, token, result };
            record::print(&api.ask_within::<RunsComplete>(asked, LATE).await?, json)
        }
        LateCommand::Fail { late: Late { id: run_id, token, json }, error, permanent, retry_after } => {
            let retry_after_ms = retry_after.map(whole_millis);
            let retryable = permanent.then_some(false);
            let asked = FailRequest { run_id, tenant: None, token, error, retryable, retry_after_ms };
            record::print(&api.ask_within::<RunsFail>(asked, LATE).await?, json)
        }
        LateCommand::Progress { late: Late { id: run_id, token, json }, progress } => {
            let asked = ProgressRequest { run_id, tenant: None, token, progress };
            let shown = |goes: Goes| match goes.deadline {
                Some(deadline) => output::say(&format!("goes on until {deadline}")),
                None => output::say("the run was cancelled"),
            };
            api.show_within::<RunsProgress>(asked, LATE, json, shown).await
        }
    }
}
