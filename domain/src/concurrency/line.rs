//! The line of a concurrency key: which runs were let in, which one waits next, and which ones have to end. It is kept
//! for keys whose jobs do more than wait for a free slot: those of a type with another `on_busy` than `wait`.
//!
//! The line is an index: whether a run that stands in it has ended, that run's record says. So no node has to strike it
//! off, and no death can keep a place. Each version is made from the one read and stored by compare-and-set, and a run
//! stands in it only once its record is stored: a run without a record has ended.
//!
//! Slots bound how many attempts are at work; the line bounds how many *runs* have been let in and have not ended, also
//! while they wait for a retry. A run is let in before its first attempt, and only once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::OnBusy;
use crate::{RunId, Timestamp};

/// A run that was let in keeps its place for so long after the end of an attempt: the longest wait for the next one.
const KEPT_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// A line is stored for so much longer, so that not each attempt writes it again.
const AHEAD: Duration = Duration::from_secs(6 * 60 * 60);

/// A run in a line, in one of its rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub run_id: RunId,
    /// Its round: a replay is another arrival.
    pub round: u32,
    /// When it came.
    pub place: Place,
}

impl Member {
    /// Whether this is the same run in the same round.
    pub fn is(&self, other: &Self) -> bool {
        self.run_id == other.run_id && self.round == other.round
    }
}

/// When a job came: the time at which its lane stored it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The time.
    pub at: Timestamp,
    /// The sequence in the lane.
    pub number: u64,
}

/// What is stored of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Line {
    /// The runs that were let in, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inside: Vec<Member>,
    /// The newest run that waits, if only that one may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Member>,
    /// Runs that made way for others, and may not have ended yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leaving: Vec<Leaving>,
    /// It is stored until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// A run that makes way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// The run.
    pub member: Member,
    /// For which other run.
    pub by: RunId,
}

/// What a run finds at its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// It is let in.
    In,
    /// It waits until this one has ended.
    Waits(RunId),
    /// As many as may have been let in, this one last: it ends.
    Busy(RunId),
    /// A newer one has come: it ends.
    Superseded(RunId),
}

/// What follows when a run comes to its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// What becomes of the run, once `write` is stored.
    pub entry: Entry,
    /// The next version of the line; `None`: it stays as it is.
    pub write: Option<Line>,
    /// Runs that have to be ended then, before the run goes on: no other node may know of them.
    pub cancel: Vec<Leaving>,
}

impl Line {
    /// Whether it names none: then it says as much as no line.
    pub fn is_empty(&self) -> bool {
        self.members().next().is_none()
    }

    /// The runs that it names.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.inside.iter().chain(&self.next).chain(self.leaving.iter().map(|leaving| &leaving.member))
    }

    /// The runs that were let in and have not ended.
    pub fn inside(&self, has_ended: impl Fn(&Member) -> bool) -> impl Iterator<Item = &Member> {
        self.inside.iter().filter(move |member| !has_ended(member))
    }

    /// The line without the runs that have ended.
    #[must_use]
    pub fn without_ended(&self, has_ended: impl Fn(&Member) -> bool) -> Self {
        let stays = |member: &&Member| !has_ended(member);
        Self {
            inside: self.inside.iter().filter(stays).cloned().collect(),
            next: self.next.as_ref().filter(stays).cloned(),
            leaving: self.leaving.iter().filter(|leaving| stays(&&leaving.member)).cloned().collect(),
            until: self.until,
        }
    }

    /// For how long it is to be stored, from `now` on.
    pub fn lasts(&self, now: Timestamp) -> Duration {
        self.until.map_or(KEPT_AFTER, |until| until.since(now))
    }

    /// Judges a run that comes to the line of a key that lets `max` runs in at once.
    pub fn judge(&self, me: &Member, on_busy: OnBusy, max: u32, has_ended: impl Fn(&Member) -> bool) -> Judged {
        let mut line = self.without_ended(has_ended);
        let cancel: Vec<Leaving> = line.leaving.iter().filter(|leaving| !leaving.member.is(me)).cloned().collect();
        let stays = |entry| Judged { entry, write: None, cancel: cancel.clone() };
        if let Some(own) = line.leaving.iter().find(|leaving| leaving.member.is(me)) {
            return stays(Entry::Superseded(own.by.clone()));
        }
        if line.inside.iter().any(|member| member.is(me)) {
            return stays(Entry::In);
        }
        let has_room = line.inside.len() < max as usize;
        let keeps_newest = matches!(on_busy, OnBusy::KeepNewest | OnBusy::CancelRunning);
        if keeps_newest {
            let waits = line.next.iter().filter(|next| !next.is(me));
            let works = line.inside.iter().filter(|_| !has_room);
            if let Some(newer) = waits.chain(works).filter(|member| member.place > me.place).max_by_key(|m| m.place) {
                return stays(Entry::Superseded(newer.run_id.clone()));
            }
        }
        let entry = match (line.inside.first().map(id_of), line.inside.last().map(id_of)) {
            (Some(_), Some(last)) if !has_room && on_busy == OnBusy::DropNew => return stays(Entry::Busy(last)),
            (Some(first), Some(_)) if !has_room && on_busy == OnBusy::Wait => return stays(Entry::Waits(first)),
            (Some(first), Some(_)) if !has_room && on_busy == OnBusy::KeepNewest => {
                if line.next.as_ref().is_some_and(|next| next.is(me)) {
                    return stays(Entry::Waits(first));
                }
                line.leaving
                    .extend(line.next.replace(me.clone()).map(|member| Leaving { member, by: me.run_id.clone() }));
                Entry::Waits(first)
            }
            _ => {
                // The oldest make way, and those that waited are older, too.
                let over = (line.inside.len() + 1).saturating_sub(max.max(1) as usize);
                let older = line.inside.drain(..over).chain(line.next.take().filter(|next| !next.is(me)));
                line.leaving.extend(older.map(|member| Leaving { member, by: me.run_id.clone() }));
                line.inside.push(me.clone());
                Entry::In
            }
        };
        Judged { entry, cancel: line.leaving.clone(), write: Some(line) }
    }
}

impl Judged {
    /// The same, but that the `line` which was judged outlasts what the run begins at `now`, an attempt or a wait that
    /// takes at most so long, and a wait for the next one. A line that does not is written again as it is.
    #[must_use]
    pub fn kept(mut self, line: &Line, now: Timestamp, takes: Duration) -> Self {
        let needed = now.plus(takes).plus(KEPT_AFTER);
        if matches!(self.entry, Entry::In | Entry::Waits(_)) && line.until.is_none_or(|until| until < needed) {
            self.write.get_or_insert_with(|| line.clone());
        }
        if let Some(next) = &mut self.write {
            // Other runs in it may need it for longer.
            next.until = line.until.max(Some(needed.plus(AHEAD)));
        }
        self
    }
}

fn id_of(member: &Member) -> RunId {
    member.run_id.clone()
}
