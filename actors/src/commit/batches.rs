//! Lines on their way into the event log: which of them make one message, and when it goes out.
//!
//! A tenant has one batch in flight at a time: meanwhile the next one grows. That keeps the order of events in spite of
//! repeats. A small batch waits up to [`LINGER`] for more.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_domain::Tenant;

use crate::commit::Commit;

/// Maximum bytes of a batch: well below the server's default bound of 1 MiB on a message.
const MAX_BYTES: usize = 384 * 1024;
/// With more bytes than this on their way, what handlers say is left out: commits have bounds of their own.
const FULL_AT: usize = 32 * 1024 * 1024;
/// So many commits are worth a message of the log: with batches of 8, a job was measured to cost a fifth more.
const WORTH_IT: usize = 64;
/// A batch with fewer commits waits for so long, from its first line on. The next start waits for no batch.
const LINGER: Duration = Duration::from_millis(2);

/// The lines of all tenants that are not in the log yet.
#[derive(Debug)]
pub(crate) struct Batches {
    most_bytes: usize,
    /// How many bytes of lines wait for their batch to go out.
    bytes: usize,
    of: HashMap<Tenant, Queue>,
    /// Tenants whose next batch goes out now, if they have none in flight.
    ready: Vec<Tenant>,
    /// When the next batch of a tenant goes out at the latest, earliest first. It may have gone out by then.
    due: VecDeque<(Instant, Tenant)>,
}

#[derive(Debug, Default)]
struct Queue {
    in_flight: bool,
    open: VecDeque<Batch>,
}

/// Lines that go into the log in one message, and the commits that go on once they are there.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    lines: Vec<u8>,
    due: Option<Instant>,
    #[expect(clippy::vec_box, reason = "a commit moves many times: its box moves as one word")]
    pub(crate) commits: Vec<Box<Commit>>,
}

impl Batch {
    /// Its lines, which are the message's body.
    pub(crate) fn take_body(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.lines))
    }
}

impl Batches {
    /// For a server that takes messages of up to `max_payload` bytes.
    pub(crate) fn new(max_payload: usize) -> Self {
        let most_bytes = MAX_BYTES.min(max_payload / 2);
        Self { most_bytes, bytes: 0, of: HashMap::new(), ready: Vec::new(), due: VecDeque::new() }
    }

    /// The server takes messages of up to `max_payload` bytes by now.
    pub(crate) fn fit(&mut self, max_payload: usize) {
        self.most_bytes = MAX_BYTES.min(max_payload / 2);
    }

    /// Whether so much waits that only what must not be missed is to be added.
    pub(crate) fn are_full(&self) -> bool {
        self.bytes >= FULL_AT
    }

    /// Takes lines, each with its line break, and the commit that goes on once the last of them is in the log.
    pub(crate) fn add(&mut self, tenant: &Tenant, parts: [&[u8]; 2], commit: Option<Box<Commit>>, now: Instant) {
        if !self.of.contains_key(tenant) {
            self.of.insert(tenant.clone(), Queue::default());
        }
        let Some(queue) = self.of.get_mut(tenant) else { return };
        // The lines of a commit stay together where they can: people read the log, too.
        let whole = parts[0].len() + parts[1].len();
        self.bytes += whole;
        let mut together = whole.min(self.most_bytes);
        for mut lines in parts {
            while !lines.is_empty() {
                let fits = whole_lines(lines, self.most_bytes);
                queue.last(fits.max(together), self.most_bytes).lines.extend_from_slice(&lines[..fits]);
                lines = &lines[fits..];
                together = 0;
            }
        }
        queue.last(0, self.most_bytes).commits.extend(commit);
        if queue.in_flight {
            return;
        }
        let more = queue.open.len() > 1;
        let Some(next) = queue.open.front_mut() else { return };
        // Once when the batch is full, and once when it begins.
        if more || next.commits.len() == WORTH_IT {
            self.ready.push(tenant.clone());
        } else if next.due.is_none() {
            let due = now + LINGER;
            next.due = Some(due);
            self.due.push_back((due, tenant.clone()));
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.front().map(|(due, _)| *due)
    }

    /// The earliest due time has come: its batch goes out, if it has not yet.
    pub(crate) fn fall_due(&mut self) {
        let Some((due, tenant)) = self.due.pop_front() else { return };
        let next = self.of.get(&tenant).and_then(|queue| queue.open.front());
        if next.is_some_and(|batch| batch.due == Some(due)) {
            self.ready.push(tenant);
        }
    }

    /// The batches that go out now; each is in flight until it is [`Batches::logged`].
    pub(crate) fn take_ready(&mut self) -> Vec<(Tenant, Batch)> {
        let mut batches = Vec::new();
        for tenant in std::mem::take(&mut self.ready) {
            let Some(queue) = self.of.get_mut(&tenant).filter(|queue| !queue.in_flight) else { continue };
            let Some(mut batch) = queue.open.pop_front() else { continue };
            let fits = whole_lines(&batch.lines, self.most_bytes);
            if fits < batch.lines.len() {
                // It was filled when the server took more. Its commits go on with its last line.
                let (lines, commits) = (batch.lines.split_off(fits), std::mem::take(&mut batch.commits));
                queue.open.push_front(Batch { lines, due: None, commits });
            }
            self.bytes -= batch.lines.len();
            queue.in_flight = true;
            batches.push((tenant, batch));
        }
        batches
    }

    /// A tenant's batch was in flight and is not in the log, as its body is too large: it goes out again, in parts.
    pub(crate) fn put_back(&mut self, tenant: Tenant, body: Bytes, batch: Batch) {
        self.bytes += body.len();
        let queue = self.of.entry(tenant.clone()).or_default();
        queue.in_flight = false;
        queue.open.push_front(Batch { lines: body.into(), due: None, commits: batch.commits });
        self.ready.push(tenant);
    }

    /// A tenant's batch is in the log: its next one may go out.
    pub(crate) fn logged(&mut self, tenant: &Tenant, now: Instant) {
        let Some(queue) = self.of.get_mut(tenant) else { return };
        debug_assert!(queue.in_flight, "two batches of {tenant} were in flight");
        queue.in_flight = false;
        let more = queue.open.len() > 1;
        match queue.open.front_mut() {
            None => drop(self.of.remove(tenant)),
            Some(next) if more || next.commits.len() >= WORTH_IT => self.ready.push(tenant.clone()),
            Some(next) => {
                let due = now + LINGER;
                next.due = Some(due);
                self.due.push_back((due, tenant.clone()));
            }
        }
    }

    /// Tidies up after a committer that died: only these tenants have a batch in flight.
    pub(crate) fn tidy(&mut self, in_flight: &[Tenant]) {
        (self.ready, self.due) = (Vec::new(), VecDeque::new());
        self.of.retain(|tenant, queue| {
            queue.in_flight = in_flight.contains(tenant);
            if !queue.in_flight && !queue.open.is_empty() {
                self.ready.push(tenant.clone());
            }
            queue.in_flight || !queue.open.is_empty()
        });
    }

    /// Nothing waits, and nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

/// How many bytes of these lines one message has, of `most` at most: whole lines, and one at least.
fn whole_lines(lines: &[u8], most: usize) -> usize {
    let Some((first, rest)) = lines.split_at_checked(most) else { return lines.len() };
    let is_end = |byte: &u8| *byte == b'\n';
    match first.iter().rposition(is_end) {
        Some(end) => end + 1,
        None => most + rest.iter().position(is_end).map_or(rest.len(), |end| end + 1),
    }
}

impl Queue {
    /// The batch that can take `bytes` more.
    fn last(&mut self, bytes: usize, max: usize) -> &mut Batch {
        match self.open.back() {
            Some(batch) if batch.lines.is_empty() || batch.lines.len() + bytes <= max => {}
            _ => self.open.push_back(Batch::default()),
        }
        self.open.back_mut().expect("it was put there just now")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).unwrap()
    }

    fn bodies(batches: &mut Batches) -> Vec<String> {
        let ready = batches.take_ready();
        ready.into_iter().map(|(_, mut batch)| String::from_utf8(batch.take_body().to_vec()).unwrap()).collect()
    }

    #[test]
    fn one_batch_is_in_flight_while_the_next_one_grows() {
        let (mut batches, acme) = (Batches::new(1 << 20), tenant("acme"));
        batches.add(&acme, [b"1\n", b""], None, Instant::now());
        assert!(!batches.is_ready() && batches.due().is_some(), "it waits for more");
        batches.add(&acme, [b"2\n", b"3\n"], None, Instant::now());
        batches.fall_due();
        assert_eq!(bodies(&mut batches), ["1\n2\n3\n"]);
        batches.add(&acme, [b"4\n", b""], None, Instant::now());
        assert!(batches.due().is_none() && !batches.is_ready() && bodies(&mut batches).is_empty());
        batches.logged(&acme, Instant::now());
        batches.fall_due();
        assert_eq!(bodies(&mut batches), ["4\n"]);
        assert!(!batches.is_empty());
        batches.logged(&acme, Instant::now());
        assert!(batches.is_empty());
    }

    #[test]
    fn tenants_do_not_wait_for_each_other() {
        let mut batches = Batches::new(1 << 20);
        for name in ["a", "b"] {
            batches.add(&tenant(name), [name.as_bytes(), b"\n"], None, Instant::now());
        }
        batches.fall_due();
        assert_eq!(bodies(&mut batches), ["a\n"]);
        batches.fall_due();
        assert_eq!(bodies(&mut batches), ["b\n"]);
    }

    #[test]
    fn what_is_too_much_for_one_message_goes_in_several_whole_lines() {
        let (mut batches, acme) = (Batches::new(40), tenant("acme"));
        let lines = "0123456\n".repeat(7);
        batches.add(&acme, [b"before\n", b""], None, Instant::now());
        batches.add(&acme, [lines.as_bytes(), b"end\n"], None, Instant::now());
        let mut sent = Vec::new();
        while !batches.is_empty() {
            if batches.is_ready() {
                sent.extend(bodies(&mut batches));
                batches.logged(&acme, Instant::now());
            } else {
                batches.fall_due();
            }
        }
        assert!(sent.iter().all(|body| body.len() <= 20 && body.ends_with('\n')), "{sent:?}");
        assert_eq!(sent.concat(), format!("before\n{lines}end\n"));
    }

    #[test]
    fn a_batch_that_a_dead_committer_was_sending_holds_up_no_other() {
        let (mut batches, acme) = (Batches::new(1 << 20), tenant("acme"));
        batches.add(&acme, [b"1\n", b""], None, Instant::now());
        batches.fall_due();
        drop(batches.take_ready());
        batches.add(&acme, [b"2\n", b""], None, Instant::now());
        batches.tidy(&[]);
        assert_eq!(bodies(&mut batches), ["2\n"]);
        batches.tidy(&[acme]);
        assert!(!batches.is_empty() && !batches.is_ready());
    }
}
