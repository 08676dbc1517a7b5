//! How many parked jobs are wanted back: as many as could start now, and as start within a part of the lease by what
//! started lately. None comes back only to wait here: after a while it would be parked once more.

use std::collections::HashMap;
use std::time::Instant;

use longshore_domain::{JobType, Tenant};

use super::Blocked;
use super::waiting::{MAX_KEPT, MIN_KEPT};
use crate::queue::held::HasPayload;
use crate::runtime::kind::{Kind, Room};

/// What is wanted back of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    /// So many jobs of the kind,
    pub(crate) jobs: usize,
    /// and so many of all kinds of its tenant and type together: these share their handlers.
    pub(crate) of_type: usize,
}

/// The jobs of a tenant and type that wait here or are on their way back.
type Here<'a> = HashMap<(&'a Tenant, &'a JobType), usize>;

impl<T: HasPayload> Blocked<T> {
    /// What is wanted back of each of these kinds.
    pub(crate) fn wanted(&self, kinds: &[(&Kind, Room)], now: Instant) -> Vec<Want> {
        let mut here = Here::new();
        for (kind, waiting) in &self.kinds {
            let jobs = waiting.jobs.len() + waiting.expected(now);
            if jobs > 0 {
                *here.entry((&kind.tenant, &kind.job_type)).or_default() += jobs;
            }
        }
        kinds.iter().map(|(kind, room)| self.wants(kind, *room, &here, now)).collect()
    }

    fn wants(&self, kind: &Kind, room: Room, here: &Here<'_>, now: Instant) -> Want {
        let over = self.counted_over;
        let here_of_type = here.get(&(&kind.tenant, &kind.job_type)).copied().unwrap_or(0);
        let of_type = self.parked_types.get(&kind.job_type).map_or(0, |starts| starts.recent(now, over));
        let waiting = self.kinds.get(kind);
        let of_kind = waiting.map_or(0, |waiting| waiting.starts.recent(now, over));
        let (jobs, of_type) = match room {
            Room::For(free @ 1..) => {
                let free = free.min(MAX_KEPT);
                (free.max(of_kind).max(MIN_KEPT), free.max(of_type).max(MIN_KEPT))
            }
            Room::Trial => (1, 1_usize.saturating_sub(here_of_type)),
            Room::NotYet => (0, 0),
            // Jobs of too many kinds wait here: these have to wait where they are.
            Room::For(0) | Room::HandlersFull if !self.held.has_room(1) => (0, 0),
            // Each key follows its own jobs,
            Room::For(0) => (of_kind, of_kind),
            // but handlers take those of any key.
            Room::HandlersFull => (of_kind.max(of_type.min(1)), of_type.saturating_sub(here_of_type)),
        };
        let here = waiting.map_or(0, |waiting| waiting.jobs.len() + waiting.expected(now));
        Want { jobs: jobs.saturating_sub(here), of_type }
    }
}
