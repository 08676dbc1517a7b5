//! Whether a job takes the fast path: it begins without a record, so nothing is read or written before the work.
//!
//! It may do so only if nothing can be stored that speaks of its run: no node has had the job, no other job can have
//! its key or its id, and nobody has cancelled it. This is decided once, as the attempt begins, from all that the node
//! knows by then. If anything is in doubt, the record is read and claimed first, which is always safe. Pure: no server,
//! no clock.

use std::time::Duration;

use crate::JobOptions;
use crate::protocol::Arrival;

/// What a node knows of a job that it has pulled, without reading its record.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// What its delivery says.
    pub arrival: &'a Arrival,
    /// What its client asked for.
    pub options: Option<&'a JobOptions>,
    /// The lane's high-water mark as the delivery was read: up to this sequence a delivery count proves nothing.
    pub mark: u64,
    /// How long ago the server may have sent it.
    pub buffered_for: Duration,
    /// How long a node that cancels its run waits for this one to confirm.
    pub confirmed_within: Duration,
    /// This node knows that its run is cancelled.
    pub is_cancelled: bool,
    /// Other jobs of its key have a say in whether it starts: it has a place in a line or an order.
    pub has_place: bool,
}

/// Whether the job begins without its record.
pub fn is_open(known: &Candidate<'_>) -> bool {
    let Arrival { holding, seal, .. } = known.arrival;
    // Straight from a client, and no node had it before.
    let is_first_hand = seal.is_none() && holding.delivery == 1 && holding.message.sequence > known.mark;
    // Another job may have the same key, or the same id if the client chose it.
    let is_shared = known.options.is_some_and(|options| options.idempotency_key.is_some() || options.own_run_id);
    // What follows it needs its record, and a batch is joined first.
    let is_followed = known.options.is_some_and(|options| options.then.is_some() || options.batch.is_some());
    // A node that cancels its run goes on without this one's word after a while.
    let is_in_doubt = known.is_cancelled || known.buffered_for > known.confirmed_within;
    is_first_hand && !is_shared && !is_followed && !is_in_doubt && !known.has_place
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::job::Then;
    use crate::run::{Holding, MessageId};
    use crate::{JobType, Timestamp};

    fn arrival(delivery: u64) -> Arrival {
        let message = MessageId { stream: "LANE".into(), sequence: 7, at: Timestamp::from_millis(1) };
        Arrival {
            holding: Holding { message, delivery },
            round: 1,
            attempt: 1,
            deferrals: 0,
            due_at: None,
            moved: false,
            seal: None,
            has_derived_id: true,
            has_aged: false,
        }
    }

    #[test]
    fn each_doubt_alone_closes_it() {
        let (first, second) = (arrival(1), arrival(2));
        let sealed = Arrival { seal: Some("5ea1".into()), ..arrival(1) };
        let keyed = JobOptions { idempotency_key: Some("k".to_owned()), ..JobOptions::default() };
        let named = JobOptions { own_run_id: true, ..JobOptions::default() };
        let then = Then { job_type: JobType::parse("t").unwrap(), job: String::new() };
        let chained = JobOptions { then: Some(then), ..JobOptions::default() };
        let plain = JobOptions::default();
        let within = Duration::from_secs(2);
        let known = || Candidate {
            arrival: &first,
            options: Some(&plain),
            mark: 6,
            buffered_for: within,
            confirmed_within: within,
            is_cancelled: false,
            has_place: false,
        };
        assert!(is_open(&known()) && is_open(&Candidate { options: None, ..known() }));
        for (doubt, known) in [
            ("a node had it before", Candidate { arrival: &second, ..known() }),
            ("a node moved it", Candidate { arrival: &sealed, ..known() }),
            ("the server may have forgotten who had it", Candidate { mark: 7, ..known() }),
            ("the mark is not known", Candidate { mark: u64::MAX, ..known() }),
            ("another job may have its key", Candidate { options: Some(&keyed), ..known() }),
            ("another job may have its id", Candidate { options: Some(&named), ..known() }),
            ("another job follows it", Candidate { options: Some(&chained), ..known() }),
            ("it was buffered for long", Candidate { buffered_for: within + Duration::from_millis(1), ..known() }),
            ("its run is cancelled", Candidate { is_cancelled: true, ..known() }),
            ("others of its key come first", Candidate { has_place: true, ..known() }),
        ] {
            assert!(!is_open(&known), "{doubt}");
        }
    }
}
