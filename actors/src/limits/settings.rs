//! What a node knows of the cluster's run-time settings, and for how long that counts.
//!
//! `cluster/run_time_settings.rs` reads them and fills this in. A node that has not read them for a while, because it
//! was frozen or is cut off, may have missed a pause: it starts no attempt until it has read them again. So who orders
//! a pause can wait until it holds everywhere, also on nodes that do not answer.
//!
//! While nothing is paused a start costs two loads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use longshore_backbone::run_time_settings::SettingChange;
use longshore_domain::limit::{RateLimit, Scope};
use longshore_domain::setting::{KNOWN_FOR, Pause, PauseOf, Setting, SettingKey};
use longshore_domain::{JobType, Queue};

use crate::limits::faults::{self, Faults};
use crate::runtime::gate_news::GateNews;
use crate::runtime::{Unpoisoned as _, now};

#[derive(Debug)]
pub(crate) struct RunTimeSettings {
    /// The moment from which the others count.
    start: Instant,
    /// When the last presence was sent that was stored, and the last question that was answered; 0: never.
    present_at: AtomicU64,
    read_at: AtomicU64,
    any_pause: AtomicBool,
    /// Whether a type is or was paused: every job asks, and reading the lock would be a write that all threads share.
    any_type: AtomicBool,
    table: RwLock<SettingsTable>,
    /// The faults on purpose among them.
    pub(crate) faults: Faults,
    /// Notified when jobs may start that could not before.
    news: Arc<GateNews>,
}

#[derive(Debug, Default)]
struct SettingsTable {
    settings: BTreeMap<SettingKey, KnownSetting>,
    /// The revision up to which every change is known.
    read_up_to: u64,
    /// Types that are or were paused: their jobs keep their order while they wait.
    types: HashSet<JobType>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KnownSetting {
    pub(crate) setting: Setting,
    pub(crate) revision: u64,
}

impl RunTimeSettings {
    /// Nothing is known yet, so that no attempt may start.
    pub(crate) fn new(news: Arc<GateNews>) -> Self {
        Self {
            start: Instant::now(),
            present_at: AtomicU64::new(0),
            read_at: AtomicU64::new(0),
            any_pause: AtomicBool::new(false),
            any_type: AtomicBool::new(false),
            table: RwLock::default(),
            faults: Faults::default(),
            news,
        }
    }

    /// Whether what is known here counts at `now`.
    pub(crate) fn are_known(&self, now: Instant) -> bool {
        // Read in this order, an older value can only be taken for an older one.
        let from = self.read_at.load(Ordering::SeqCst).min(self.present_at.load(Ordering::SeqCst));
        from > 0 && self.nanos(now) < from + KNOWN_FOR.as_nanos() as u64
    }

    /// Whether attempts of a queue's jobs may start at `now`.
    pub(crate) fn may_start_in(&self, queue: &Queue, now: Instant) -> bool {
        self.are_known(now) && self.pause_of_queue(queue).is_none()
    }

    /// Whether an attempt of a job of this queue and type may start at `now`.
    pub(crate) fn may_start(&self, queue: &Queue, job_type: &JobType, now: Instant) -> bool {
        self.may_start_in(queue, now) && self.pause_of_type(queue, job_type).is_none()
    }

    pub(crate) fn pause_of_queue(&self, queue: &Queue) -> Option<Pause> {
        self.any_pause.load(Ordering::SeqCst).then(|| self.pause(&PauseOf::Queue(queue.clone())))?
    }

    /// The pause that holds for a type's jobs in a queue that is not paused itself; of two the one that lasts longer.
    pub(crate) fn pause_of_type(&self, queue: &Queue, job_type: &JobType) -> Option<Pause> {
        if !self.any_pause.load(Ordering::SeqCst) {
            return None;
        }
        let both = [PauseOf::Type(job_type.clone()), PauseOf::TypeInQueue(job_type.clone(), queue.clone())];
        let pauses = both.iter().filter_map(|of| self.pause(of));
        pauses.max_by_key(|pause| pause.until.map_or(i64::MAX, |until| until.millis()))
    }

    fn pause(&self, of: &PauseOf) -> Option<Pause> {
        let table = self.table.read().unpoisoned();
        let known = table.settings.get(&SettingKey::Pause(of.clone()))?;
        let Setting::Pause(pause) = known.setting else { return None };
        pause.holds(now()).then_some(pause)
    }

    /// Whether a type's jobs are paused, or were since this node started.
    pub(crate) fn was_paused(&self, job_type: &JobType) -> bool {
        self.any_type.load(Ordering::SeqCst) && self.table.read().unpoisoned().types.contains(job_type)
    }

    pub(crate) fn pauses(&self) -> Vec<(PauseOf, Pause)> {
        let (table, now) = (self.table.read().unpoisoned(), now());
        let all = table.settings.iter().filter_map(|(key, known)| match (key, &known.setting) {
            (SettingKey::Pause(of), Setting::Pause(pause)) => Some((of.clone(), *pause)),
            _ => None,
        });
        all.filter(|(_, pause)| pause.holds(now)).collect()
    }

    /// The rate limits that were set, by scope.
    pub(crate) fn limits(&self) -> HashMap<Scope, RateLimit> {
        let table = self.table.read().unpoisoned();
        let all = table.settings.iter().filter_map(|(key, known)| match (key, &known.setting) {
            (SettingKey::Limit(scope), Setting::Limit(limit)) => Some((scope.clone(), *limit)),
            _ => None,
        });
        all.collect()
    }

    fn nanos(&self, at: Instant) -> u64 {
        // One at least: 0 means never.
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

/// For the parts that fill it in.
impl RunTimeSettings {
    /// This node's presence was stored, which was sent at `sent`.
    pub(crate) fn is_present(&self, sent: Instant) {
        self.present_at.store(self.nanos(sent), Ordering::SeqCst);
        self.news.notify();
    }

    pub(crate) fn read_up_to(&self) -> u64 {
        self.table.read().unpoisoned().read_up_to
    }

    /// These are all changes after that revision, or all settings there are, as they were asked for at `sent`.
    pub(crate) fn take_in(&self, changes: Vec<SettingChange>, are_all: bool) {
        let mut guard = self.table.write().unpoisoned();
        let table = &mut *guard;
        if are_all {
            (table.settings, table.read_up_to) = (BTreeMap::new(), 0);
        }
        let any = are_all || !changes.is_empty();
        for SettingChange { key, setting, revision, .. } in changes {
            table.read_up_to = table.read_up_to.max(revision);
            match (key, setting) {
                (Some(key), Some(setting)) => {
                    if let SettingKey::Pause(of) = &key {
                        table.types.extend(of.job_type().cloned());
                    }
                    table.settings.insert(key, KnownSetting { setting, revision });
                }
                (Some(key), None) => drop(table.settings.remove(&key)),
                (None, _) => {}
            }
        }
        let faults = table.settings.iter().filter_map(|(key, known)| match (key, &known.setting) {
            (SettingKey::Fault(job_type, kind), Setting::Fault(fault)) => {
                let (job_type, fault) = (job_type.clone(), fault.clone());
                Some(faults::ActiveFault { job_type, kind: *kind, fault, revision: known.revision, struck: 0 })
            }
            _ => None,
        });
        self.faults.take_in(faults);
        let any_pause = table.settings.keys().any(|key| matches!(key, SettingKey::Pause(_)));
        // Set before the lock is released: who asks after this call must find every pause.
        self.any_pause.store(any_pause, Ordering::SeqCst);
        self.any_type.store(!table.types.is_empty(), Ordering::SeqCst);
        drop(guard);
        if any {
            self.news.notify();
        }
    }

    /// What was taken in last was asked for at `sent`, and everything that it forbids has been stopped.
    pub(crate) fn were_read(&self, sent: Instant) {
        let before = self.read_at.swap(self.nanos(sent), Ordering::SeqCst);
        if before == 0 {
            self.news.notify();
        }
    }

    /// The settings whose time is over, with their revisions.
    pub(crate) fn over(&self) -> Vec<(SettingKey, u64)> {
        let (table, now) = (self.table.read().unpoisoned(), now());
        let over = table.settings.iter().filter(|(_, known)| known.setting.ends_at().is_some_and(|at| at <= now));
        over.map(|(key, known)| (key.clone(), known.revision)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_domain::Timestamp;

    use super::*;

    fn change(of: PauseOf, pause: Option<Pause>, revision: u64) -> SettingChange {
        let (key, at) = (Some(SettingKey::Pause(of)), Timestamp::from_millis(0));
        SettingChange { key, setting: pause.map(Setting::Pause), revision, at }
    }

    fn pause(until: Option<Timestamp>) -> Option<Pause> {
        Some(Pause { since: Timestamp::from_millis(0), until })
    }

    fn settings() -> RunTimeSettings {
        let settings = RunTimeSettings::new(Arc::default());
        settings.is_present(Instant::now());
        settings.were_read(Instant::now());
        settings
    }

    #[test]
    fn nothing_starts_by_what_is_not_known_or_was_read_long_ago() {
        let (settings, queue, sent) = (RunTimeSettings::new(Arc::default()), Queue::main(), Instant::now());
        assert!(!settings.may_start_in(&queue, sent), "nothing was read");
        settings.were_read(sent);
        assert!(!settings.may_start_in(&queue, sent), "no presence says that this node is to be asked");
        settings.is_present(sent + Duration::from_secs(1));
        assert!(settings.may_start_in(&queue, sent + KNOWN_FOR - Duration::from_millis(1)));
        assert!(!settings.may_start_in(&queue, sent + KNOWN_FOR));
        settings.were_read(sent + Duration::from_secs(60));
        assert!(!settings.may_start_in(&queue, sent + Duration::from_secs(60)), "its presence is too old");
    }

    #[test]
    fn a_queue_a_type_or_both_are_paused_until_they_are_not() {
        let (settings, now) = (settings(), Instant::now());
        let (main, bulk) = (Queue::main(), Queue::parse("bulk").unwrap());
        let (mail, call) = (JobType::parse("mail").unwrap(), JobType::parse("call").unwrap());
        let may = |settings: &RunTimeSettings| {
            let each = [(&main, &mail), (&main, &call), (&bulk, &mail), (&bulk, &call)];
            each.map(|(queue, job_type)| settings.may_start(queue, job_type, now))
        };
        assert_eq!(may(&settings), [true; 4]);
        settings.take_in(vec![change(PauseOf::Queue(main.clone()), pause(None), 3)], false);
        assert_eq!(may(&settings), [false, false, true, true]);
        settings.take_in(vec![change(PauseOf::Type(mail.clone()), pause(None), 4)], false);
        assert_eq!(may(&settings), [false, false, false, true]);
        settings.take_in(vec![change(PauseOf::Queue(main.clone()), None, 5)], false);
        assert_eq!(may(&settings), [false, true, false, true]);
        let both = PauseOf::TypeInQueue(call.clone(), bulk.clone());
        settings.take_in(vec![change(both, pause(None), 6)], false);
        assert_eq!((may(&settings), settings.read_up_to()), ([false, true, false, false], 6));
        assert!(settings.was_paused(&mail) && settings.was_paused(&call));
        // All settings there are: the others were removed.
        settings.take_in(vec![change(PauseOf::Type(mail.clone()), pause(Some(Timestamp::from_millis(1))), 9)], true);
        assert_eq!((may(&settings), settings.pauses().len()), ([true; 4], 0), "its time is over");
        assert_eq!(settings.over().len(), 1);
    }
}
