//! The payload of a job, as it is stored while its run waits or works, or in its dead letter.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_backbone::records::Found;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code, Encoded, Payload, RunRequest};
use longshore_backbone::wire::header::{self, names};
use longshore_domain::{QueueLane, Run, RunId, State, Tenant};

use crate::api::{Answered, Api, dead_letters, filter, runs};
use crate::ports::WaitingPorts as _;

pub(crate) async fn serve(api: &Api, asker: &str, asked: RunRequest) -> Answered<Payload> {
    let (tenant, run_id) = filter::one(asker, asked)?;
    let mut looked_at = None;
    loop {
        let Found { run, revision } = match runs::known(api, &tenant, &run_id).await {
            // Its dead letter may be there longer.
            Err(error) if error.code == 404 => return dead(api, &tenant, &run_id).await.map_err(|_| error),
            found => found?,
        };
        match &run.state {
            State::Dead { .. } => {
                return match dead(api, &tenant, &run_id).await {
                    // It is still to be written: until then the job is where it was.
                    Err(error) if error.code == 503 => waiting(api, &run).await?.ok_or(error),
                    Err(error) if error.code == 404 => Err(gone(&run_id)),
                    found => found,
                };
            }
            state if state.is_terminal() => return Err(gone(&run_id)),
            _ => {
                if let Some(payload) = waiting(api, &run).await? {
                    return Ok(payload);
                }
            }
        }
        // It may have gone from where nobody had looked yet to where somebody had.
        if looked_at == Some(revision) {
            return Err(gone(&run_id));
        }
        looked_at = Some(revision);
    }
}

fn gone(run_id: &RunId) -> ApiError {
    ApiError::new(Code::NotKept, format!("run_id: the payload of {run_id} is not stored any more"))
        .hint("payloads are kept while runs wait and work, and in dead letters")
}

async fn dead(api: &Api, tenant: &Tenant, run_id: &RunId) -> Answered<Payload> {
    let (dead_letter, _) = dead_letters::find(api, tenant, run_id).await?;
    match dead_letter.left_out {
        Some(_) => Err(gone(run_id)),
        None => Ok(shown(&dead_letter.run, Some(&dead_letter.headers), &dead_letter.payload)),
    }
}

/// The payload of a run that has not ended: its job waits for its time, is parked, or is in a lane.
async fn waiting(api: &Api, run: &Run) -> Result<Option<Encoded<Payload>>, ApiError> {
    if let Some((lane, sequence)) = run.run_id.as_derived()
        && let Some(job) = api.backbone.job_in_lane(&lane, sequence).await?
        && job.holding.message.at == run.origin
    {
        return Ok(Some(shown(run, job.headers.as_ref(), &job.payload)));
    }
    let lanes = [QueueLane::Returned, run.priority.into()].map(|lane| Source::Lane(run.queue.clone(), lane));
    for place in [Source::Schedules, Source::Parked].into_iter().chain(lanes) {
        if let Some(stored) = api.find(&place, run).await? {
            return Ok(Some(shown(run, Some(&stored.headers), &stored.payload)));
        }
    }
    Ok(None)
}

fn shown(run: &Run, headers: Option<&Headers>, payload: &Bytes) -> Encoded<Payload> {
    let content_type = headers.and_then(|headers| header::value_of(headers, names::CONTENT_TYPE)).map(str::to_owned);
    Encoded::of(&Payload { job_type: run.job_type.clone(), content_type, payload_base64: STANDARD.encode(payload) })
}
