//! `longshore work`: takes a job, which later calls end.

use std::time::Duration;

use clap::Args;
use longshore_backbone::wire::api::{NextRequest, WorkNext};
use longshore_domain::JobType;
use longshore_domain::run::whole_millis;

use super::client::Api;
use super::target::within;
use super::{Ended, Global, output};

#[derive(Debug, Args)]
pub(crate) struct WorkArguments {
    /// The types of the job: one of them
    #[arg(required = true, value_name = "TYPE", value_parser = super::name::<JobType>)]
    types: Vec<JobType>,
    /// How long to wait for a job, up to 10m
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = within("0s", "10m"))]
    wait: Duration,
    /// The attempt has failed if it neither ends nor gives a sign for so long, 1s to 1d
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = within("1s", "1d"))]
    lease: Duration,
}

pub(crate) async fn run(global: &Global, WorkArguments { types, wait, lease }: WorkArguments) -> anyhow::Result<Ended> {
    let (wait_ms, lease_ms) = (Some(whole_millis(wait)), Some(whole_millis(lease)));
    let asked = NextRequest { types, tenant: None, wait_ms, lease_ms };
    let next = Api::connect(global).await?.ask_within::<WorkNext>(asked, wait).await?;
    output::json(&next)?;
    Ok(if next.read()?.job.is_some() { Ended::Success } else { Ended::TimedOut })
}
