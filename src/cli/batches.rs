//! `longshore batches`: creates, seals, shows and cancels batches of jobs.

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    BatchStatus, Batches, BatchesCancel, BatchesCreate, BatchesGet, BatchesList, BatchesRequest, BatchesSeal,
    CreateBatchRequest, Encoded, OnFailure, OneBatchRequest, SubmitRequest,
};
use longshore_backbone::wire::header;
use longshore_domain::{BatchId, Timestamp};

use super::client::Api;
use super::output;
use super::{Ended, Global, Lists, One};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The batches of --tenant, or with --tenant _all of all
    List {
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// One batch, with the members that it waits for
    Get(One<BatchId>),
    /// Create a batch; jobs join it by submit --batch
    Create(CreateArguments),
    /// Have its job run once all members have ended
    Seal(One<BatchId>),
    /// Cancel it, and its members that have not ended
    Cancel(One<BatchId>),
}

impl Lists for Command {
    fn list(json: bool) -> Self {
        Self::List { json }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    #[command(flatten)]
    one: One<BatchId>,
    /// The job that runs once all members have ended: JSON with the fields of the API's submit, such as
    /// {"type":"report.send"}
    #[arg(long, value_name = "JSON", value_parser = job)]
    on_complete: Box<SubmitRequest>,
    /// What a member that is a dead letter means: wait (until it is replayed or discarded), fail or ignore
    #[arg(long, value_name = "WORD", value_parser = on_failure)]
    on_failure: Option<OnFailure>,
    /// A time; the batch fails if it has not completed by then
    #[arg(long, value_name = "TIME", value_parser = super::time)]
    deadline: Option<Timestamp>,
}

fn job(text: &str) -> Result<Box<SubmitRequest>, String> {
    header::then::job(text).map(Box::new)
}

fn on_failure(text: &str) -> Result<OnFailure, String> {
    serde_json::from_value(text.into()).map_err(|_| "is not wait, fail or ignore".to_owned())
}

pub(crate) async fn run(global: &Global, command: Command) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let asked = |one: &One<BatchId>| OneBatchRequest { id: one.id.clone(), tenant: None };
    match command {
        Command::List { json } => {
            list(&api.ask::<BatchesList>(BatchesRequest::default()).await?, json)?;
        }
        Command::Get(one) => shown(&api.ask::<BatchesGet>(asked(&one)).await?, one.json)?,
        Command::Create(CreateArguments { one, on_complete, on_failure, deadline }) => {
            let on_complete = Some(on_complete);
            let request = CreateBatchRequest { id: one.id.clone(), tenant: None, on_complete, on_failure, deadline };
            shown(&api.ask::<BatchesCreate>(request).await?, one.json)?;
        }
        Command::Seal(one) => shown(&api.ask::<BatchesSeal>(asked(&one)).await?, one.json)?,
        Command::Cancel(one) => shown(&api.ask::<BatchesCancel>(asked(&one)).await?, one.json)?,
    }
    Ok(Ended::Success)
}

fn list(answer: &Encoded<Batches>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(answer);
    }
    let heading = ["id", "tenant", "state", "created"].map(str::to_owned).to_vec();
    let rows = answer.read()?.batches.into_iter().map(|batch| {
        vec![batch.id.to_string(), batch.tenant.to_string(), batch.state.to_string(), batch.created_at.to_string()]
    });
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    output::say(output::table(&rows, &[]).trim_end())
}

fn shown(answer: &Encoded<BatchStatus>, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(answer);
    }
    let batch = answer.read()?;
    let mut lines = vec![format!("{} {}", batch.id, batch.state)];
    lines.extend(batch.because.map(|reason| format!("because {reason}")));
    lines.extend(batch.members.map(|members| {
        let ended = members.completed + members.failed;
        format!("{ended} of {} members have ended, {} otherwise than completed", members.all, members.failed)
    }));
    let names: Vec<String> = batch.awaits.iter().map(ToString::to_string).collect();
    lines.extend((!names.is_empty()).then(|| format!("waits for {}", names.join(" "))));
    lines.extend(batch.failed.iter().map(|failed| format!("{} is {}", failed.run_id, failed.state)));
    lines.extend(batch.run_id.map(|run_id| format!("its job is run {run_id}")));
    output::say(&lines.join("\n"))
}
