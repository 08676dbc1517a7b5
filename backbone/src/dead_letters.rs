//! Dead letters: the job as it was published, its headers and payload, beside the whole history of its run.

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::Run;

use crate::Backbone;
use crate::error::Error;
use crate::request::{self, PubAck};
use crate::wire::header::{is_servers, names};

/// The record as it was when the run died. In a header, so that the payload stays the user's own bytes.
pub const RECORD: &str = "Longshore-Record";

impl Backbone {
    /// Writes the letter of a dead run; of one round there is one letter, however often this is repeated within the
    /// server's memory for message ids. A later repeat is told apart by run and round.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn write_letter(&self, run: &Run, original: Option<&HeaderMap>, payload: Bytes) -> Result<PubAck, Error> {
        let mut headers = HeaderMap::new();
        for (name, values) in original.iter().flat_map(|headers| headers.iter()) {
            if !is_servers(name.as_ref()) {
                for value in values {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        headers.insert(names::RUN_ID, run.run_id.as_str());
        headers.insert(names::ROUND, run.round.to_string());
        let others = payload.len() + header_bytes(original);
        let room = crate::room::in_letter(self.max_payload(), others);
        headers.insert(RECORD, crate::wire::record::show_within(run, room));
        headers.insert(names::MSG_ID, format!("{}/{}/{}", run.tenant, run.run_id, run.round));
        let subject = self.names().dead_letter(&run.tenant, &run.queue, &run.job_type);
        request::publish(self.client(), subject, headers, payload).await
    }
}

fn header_bytes(headers: Option<&HeaderMap>) -> usize {
    let all = headers.iter().flat_map(|headers| headers.iter());
    // Each stands on a line of its own: a colon, a blank, and the line's end.
    let line = |name: &str, value: &str| name.len() + value.len() + 4;
    all.flat_map(|(name, values)| values.iter().map(move |value| line(name.as_ref(), value.as_str()))).sum()
}
