//! Events as text, and back: the first bytes of each are its number in this world.

use longshore_domain::events::Event;

use crate::tests::simulation::ledger::{Body, EventId};
use crate::tests::simulation::world::World;

/// Whose event it is, which, what it says, and the last attempt of its run when it was written.
pub(crate) type Encoded = (usize, (EventId, Body), u32);

/// Bytes of a number, seven bits in each, so that none is the end of a line.
const BYTES: usize = 3;

impl World {
    /// Appends the number of an event of this plan.
    pub(crate) fn write_event(&self, plan: usize, event: &Event<'_>, node: &str, text: &mut Vec<u8>) {
        let mut encoded = self.encoded.borrow_mut();
        let number = encoded.len();
        assert!(number < 1 << (7 * BYTES), "a world has few events");
        encoded.push((plan, (EventId::of(event), Body::of(event, node)), event.run.attempt));
        text.extend((0..BYTES).map(|byte| 0x80 | (number >> (7 * byte)) as u8));
    }

    /// Whose event it is, which, what it says, and the attempt of its run when it was written.
    pub(crate) fn read_event(&self, text: &[u8]) -> Encoded {
        let bytes = text.iter().take(BYTES).enumerate();
        let number: usize = bytes.map(|(byte, bits)| usize::from(bits & 0x7f) << (7 * byte)).sum();
        self.encoded.borrow()[number].clone()
    }
}
