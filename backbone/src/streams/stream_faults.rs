//! What is wrong with the streams that a node needs, while it runs: a user may delete or alter them.

use async_nats::jetstream::stream::{Config, DiscardPolicy};

use crate::Backbone;
use crate::streams::info::{self, StreamState, Unanswered};
use crate::streams::shape::{self, Difference, StreamChange};
use crate::streams::wanted::WantedStream;

/// How a stream is not as a node needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFault {
    /// There is none.
    Missing,
    /// Jobs cannot go their way by these settings, or not safely.
    Unfit(Vec<Difference>),
    /// It holds less, or for a shorter time, than the settings of this node say; or takes messages of another size.
    OtherBounds(Vec<Difference>),
}

/// Settings that bound what a stream holds: another node's configuration may have others.
const BOUNDS: [&str; 6] =
    ["max_bytes", "max_messages", "max_message_size", "max_age", "num_replicas", "duplicate_window"];

impl StreamFault {
    /// What is wrong about a stream that differs so from what is wanted; `None`: nothing that matters.
    fn of(change: StreamChange) -> Option<Self> {
        let is_bound = |difference: &Difference| BOUNDS.contains(&difference.setting);
        match change {
            StreamChange::Impossible(difference) => Some(Self::Unfit(vec![difference])),
            StreamChange::Update { changed, .. } if changed.is_empty() => None,
            StreamChange::Update { changed, .. } if changed.iter().all(is_bound) => Some(Self::OtherBounds(changed)),
            StreamChange::Update { changed, .. } => {
                Some(Self::Unfit(changed.into_iter().filter(|changed| !is_bound(changed)).collect()))
            }
            StreamChange::None { .. } => None,
        }
    }
}

impl Backbone {
    /// What is wrong with this stream at the moment, and what it holds. Consumers are not looked at: see
    /// [`Backbone::unanswered`].
    ///
    /// # Errors
    /// No server answers for it.
    pub async fn inspect(&self, wanted: &WantedStream) -> Result<Inspected, Unanswered> {
        let found = info::stream(self.control(), &wanted.config.name).await?;
        if let Some(found) = &found {
            let spaces = [
                ("concurrency", &self.0.concurrency_space),
                ("control", &self.0.control_space),
                ("schedules", &self.0.schedules_space),
                ("checkpoints", &self.0.checkpoints_space),
            ];
            for (_, space) in spaces.iter().filter(|(of, _)| self.names().bucket_stream(of) == wanted.config.name) {
                space.found(found.state.bytes, u64::try_from(found.config.max_bytes).unwrap_or(0));
            }
        }
        Ok(match found {
            Some(found) => Inspected {
                fault: StreamFault::of(shape::change(&found.config, &wanted.config, false)),
                messages: found.state.messages,
                full: Full::of(&found.config, &found.state),
            },
            None => Inspected { fault: Some(StreamFault::Missing), messages: 0, full: None },
        })
    }
}

/// What was found of a stream.
#[derive(Debug)]
pub struct Inspected {
    /// What is wrong with it; `None`: nothing.
    pub fault: Option<StreamFault>,
    /// How many messages it holds.
    pub messages: u64,
    /// It refuses what is published to it.
    pub full: Option<Full>,
}

/// A stream that has reached a bound, or all but, and refuses messages then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// How many messages it holds.
    pub messages: u64,
    /// How many bytes they have.
    pub bytes: u64,
}

impl Full {
    /// One message in a hundred of its bytes may still fit in: that is not worth a difference.
    fn of(config: &Config, StreamState { messages, bytes, .. }: &StreamState) -> Option<Self> {
        let reaches = |held: u64, bound: i64| u64::try_from(bound).is_ok_and(|bound| bound > 0 && held >= bound);
        let refuses = config.discard == DiscardPolicy::New;
        let is_full = reaches(*messages, config.max_messages) || reaches(bytes + bytes / 100, config.max_bytes);
        (refuses && is_full).then_some(Self { messages: *messages, bytes: *bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Storage;
    use crate::wire::subject::Names;

    #[test]
    fn a_stream_is_full_at_either_bound_if_it_refuses_messages_then() {
        let config = |discard| Config { discard, max_messages: 3, max_bytes: 1_000, ..Config::default() };
        let held = |messages, bytes| StreamState { messages, bytes, ..StreamState::default() };
        let is_full = |discard, messages, bytes| Full::of(&config(discard), &held(messages, bytes)).is_some();
        for (messages, bytes, full) in [(2, 900, false), (3, 10, true), (2, 991, true), (2, 1_000, true)] {
            assert_eq!(is_full(DiscardPolicy::New, messages, bytes), full, "{messages} {bytes}");
            assert!(!is_full(DiscardPolicy::Old, messages, bytes));
        }
        let unbounded = Config { discard: DiscardPolicy::New, max_messages: -1, max_bytes: -1, ..Config::default() };
        assert_eq!(Full::of(&unbounded, &held(1_000, 1_000_000)), None);
    }

    #[test]
    fn what_jobs_rely_on_is_a_fault_and_other_bounds_are_another() {
        let (names, storage) = (Names::new("longshore"), Storage::default());
        let wanted = shape::dead_letters(&names, &storage);
        let fault = |found: Config| StreamFault::of(shape::change(&found, &wanted, false));
        let named = |fault: Option<StreamFault>| match fault {
            Some(StreamFault::Unfit(differences)) => {
                ("unfit", differences.into_iter().map(|each| each.setting).collect())
            }
            Some(StreamFault::OtherBounds(differences)) => {
                ("bounds", differences.into_iter().map(|each| each.setting).collect())
            }
            _ => ("none", Vec::new()),
        };
        assert_eq!(named(fault(wanted.clone())).0, "none");
        assert_eq!(named(fault(Config { max_bytes: -1, ..wanted.clone() })).0, "none", "it holds more");
        let small = Config { max_bytes: 1, num_replicas: 1, ..wanted.clone() };
        assert_eq!(named(fault(small.clone())), ("bounds", vec!["max_bytes"]));
        assert_eq!(named(fault(Config { allow_direct: false, ..small })), ("unfit", vec!["allow_direct"]));
        let others = Config { subjects: vec!["others.>".to_owned()], ..wanted.clone() };
        assert_eq!(named(fault(others)), ("unfit", vec!["subjects"]));
    }
}
