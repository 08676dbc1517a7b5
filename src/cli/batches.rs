//! `longshore batches`: creates, seals, shows and cancels batches of jobs.

use clap::Subcommand;
use longshore_backbone::wire::api::{
    BatchStatus, Batches, BatchesCancel, BatchesCreate, BatchesGet, BatchesList, BatchesRequest, BatchesSeal,
    CreateBatchRequest, OnFailure, OneBatchRequest, SubmitRequest,
};
use longshore_domain::{BatchId, Timestamp};

use super::client::Api;
use super::output;
use super::target::one_of;
use super::{Ended, Global, Json, One};

#[derive(Debug, Subcommand)]
pub(crate) enum BatchesCommand {
    /// The batches of --tenant, or with --tenant _all of all
    List(Json),
    /// One batch, with the members that it waits for
    Get(One<BatchId>),
    /// Create a batch; jobs join it by submit --batch
    Create {
        #[command(flatten)]
        one: One<BatchId>,
        /// The job that runs once all members have ended: JSON with the fields of the API's submit, such as
        /// {"type":"report.send"}
        #[arg(long, value_name = "JSON", value_parser = super::job::then)]
        on_complete: Box<SubmitRequest>,
        /// What a member that is a dead letter means: wait (until it is replayed or discarded), fail or ignore
        #[arg(long, value_name = "WORD", value_parser = one_of::<OnFailure>("is not wait, fail or ignore"))]
        on_failure: Option<OnFailure>,
        /// A time; the batch fails if it has not completed by then
        #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
        deadline: Option<Timestamp>,
    },
    /// Have its job run once all members have ended
    Seal(One<BatchId>),
    /// Cancel it, and its members that have not ended
    Cancel(One<BatchId>),
}

pub(crate) async fn run(global: &Global, command: BatchesCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let asked = |one: &One<BatchId>| OneBatchRequest { id: one.id.clone(), tenant: None };
    match command {
        BatchesCommand::List(Json { json }) => {
            // An older node knows no limit.
            let asked = |cursor: Option<String>| BatchesRequest {
                limit: cursor.as_ref().map(|_| 500),
                cursor,
                ..BatchesRequest::default()
            };
            let batches = api.all::<BatchesList, _>(asked, |page: Batches| (page.batches, page.cursor)).await?;
            let page = Batches { batches, cursor: None };
            output::answer(&page, json, || output::say_table(&rows(&page.batches), &[]))
        }
        BatchesCommand::Get(one) => api.show::<BatchesGet>(asked(&one), one.json, shown).await,
        BatchesCommand::Create { one, on_complete, on_failure, deadline } => {
            let on_complete = Some(on_complete);
            let request = CreateBatchRequest { id: one.id, tenant: None, on_complete, on_failure, deadline };
            api.show::<BatchesCreate>(request, one.json, shown).await
        }
        BatchesCommand::Seal(one) => api.show::<BatchesSeal>(asked(&one), one.json, shown).await,
        BatchesCommand::Cancel(one) => api.show::<BatchesCancel>(asked(&one), one.json, shown).await,
    }
}

fn rows(batches: &[BatchStatus]) -> Vec<Vec<String>> {
    let rows = batches.iter().map(|batch| {
        [batch.id.to_string(), batch.tenant.to_string(), batch.state.to_string(), batch.created_at.to_string()]
    });
    output::rows(["id", "tenant", "state", "created"], rows)
}

fn shown(batch: BatchStatus) -> anyhow::Result<()> {
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
