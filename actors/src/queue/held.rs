//! How many jobs wait in a node because they cannot start, and the bounds on that.

/// At most so many jobs of all kinds are kept, and twice as many with those that were taken back: keys make many kinds.
pub(crate) const MAX_HELD: usize = 2_048;
/// At most so many bytes of payloads of them, and twice as many with those that were taken back.
pub(crate) const MAX_HELD_BYTES: usize = 32 << 20;

/// A job, as far as it matters how much memory it takes.
pub(crate) trait HasPayload {
    fn payload_bytes(&self) -> usize;
}

/// How many jobs wait, and the bytes of their payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    pub(crate) jobs: usize,
    bytes: usize,
}

impl Held {
    pub(crate) fn add(&mut self, job: &impl HasPayload) {
        self.jobs += 1;
        self.bytes += job.payload_bytes();
    }

    pub(crate) fn remove(&mut self, job: &impl HasPayload) {
        self.jobs -= 1;
        self.bytes -= job.payload_bytes();
    }

    /// Whether there is room for another, in `times` the usual room.
    pub(crate) fn has_room(self, times: usize) -> bool {
        self.jobs < times * MAX_HELD && self.bytes < times * MAX_HELD_BYTES
    }
}
