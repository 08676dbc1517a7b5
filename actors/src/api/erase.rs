//! Erasing the personal data of a run: payload, result, error texts, progress, checkpoints and dead letter go; which
//! run it was, when and how it ended stay.

use longshore_backbone::records::Written;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code, Encoded, Erased, ErasedDeadLetter, RunRequest};
use longshore_backbone::wire::record;
use longshore_domain::Run;

use crate::api::{Answered, Api, filter, runs};
use crate::runtime::now;

pub(crate) async fn serve(api: &Api, asker: &str, asked: RunRequest) -> Answered<Erased> {
    let Api { backbone, identity, .. } = api;
    let (tenant, run_id) = filter::one(asker, asked)?;
    let mut has_erased = false;
    loop {
        let (mut found, unreadable) = match backbone.read_record(&tenant, &run_id).await {
            Err(error) if error.unreadable_at().is_some() => (None, error.unreadable_at()),
            read => (read?, None),
        };
        if found.is_none() && unreadable.is_none() {
            found = backbone.read_record_for_certain(&tenant, &run_id).await?;
        }
        let run = found.as_ref().map(|found| &found.run);
        // A letter that a server behind the others lacks would be left.
        let dead_letter = backbone.find_dead_letter_for_certain(&tenant, &run_id, run).await?;
        if let Some(run) = run.filter(|run| !run.state.is_terminal()) {
            return Err(not_ended(run));
        }
        // First the dead letter and the checkpoints, which cannot be found again without the record.
        if let Some(dead_letter) = dead_letter {
            backbone.erase_message(&Source::DeadLetters, dead_letter.sequence).await?;
            has_erased = true;
            continue;
        }
        backbone.purge_checkpoints(&tenant, run_id.as_str()).await?;
        if let Some(revision) = unreadable {
            // Nobody can say what of it is the run's identity, and what is not: all goes.
            backbone.remove_record(&tenant, &run_id, revision).await?;
        }
        let Some(found) = found else {
            // The record is gone, by now or by its age.
            if unreadable.is_none() && !has_erased {
                // Perhaps it waits in its lane.
                return Err(not_ended(&runs::known(api, &tenant, &run_id).await?.run));
            }
            return Ok(Encoded::of(&Erased::DeadLetter(ErasedDeadLetter { run_id })));
        };
        let mut run = found.run;
        run.erase(now());
        run.token = identity.token();
        if let Written::Won(_) = backbone.write_record(&run, found.revision).await? {
            return Ok(record::show(&run).into());
        }
    }
}

fn not_ended(run: &Run) -> ApiError {
    let (run_id, state) = (&run.run_id, run.state.as_str());
    ApiError::new(Code::WrongState, format!("run_id: {run_id} is {state}: only a run that has ended can be erased"))
}
