//! `longshore work`: takes a job, which later calls end.

use std::time::Duration;

use clap::Args;
use longshore_backbone::wire::api::{NextRequest, WorkNext};
use longshore_domain::run::whole_millis;
use longshore_domain::{JobType, duration};

use super::client::Api;
use super::{Ended, Global, output};

#[derive(Debug, Args)]
pub(crate) struct WorkArguments {
    /// The types of the job: one of them
    #[arg(required = true, value_name = "TYPE", value_parser = super::name::<JobType>)]
    types: Vec<JobType>,
    /// How long to wait for a job
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration::parse)]
    wait: Duration,
    /// The attempt has failed if it neither ends nor gives a sign for so long
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = duration::parse)]
    lease: Duration,
}

pub(crate) async fn run(global: &Global, WorkArguments { types, wait, lease }: WorkArguments) -> anyhow::Result<Ended> {
    let (wait_ms, lease_ms) = (Some(whole_millis(wait)), Some(whole_millis(lease)));
    let asked = NextRequest { types, tenant: None, wait_ms, lease_ms };
    let next = Api::connect(global).await?.ask_within::<WorkNext>(asked, wait).await?;
    output::json(&next)?;
    Ok(if next.read()?.job.is_some() { Ended::Success } else { Ended::TimedOut })
}
