//! Results of the handler discovery: which remote handlers are there, and how many jobs each takes at once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use longshore_backbone::control::MissingHandler;
use longshore_backbone::handlers::{Announced, falls_under};
use longshore_domain::{Job, Timestamp};
use tokio::sync::Notify;

use crate::runtime::{Unpoisoned as _, now};

/// Handlers are asked every few seconds while there are jobs for them. Older answers say little about which handlers
/// are there now.
const HOLDS_FOR: Duration = Duration::from_secs(15);
/// After no handler was there for a job, no other job is tried for so long: thousands may wait for that handler. The
/// pause grows with the time that the handler has been away. Where very many tenants or types lack theirs, it is
/// longer, so that any two tries are so far apart on the average, but never longer than the last of these.
const MISSED_FOR: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// Which part of the time without a handler the pause may add to it.
const MISSED_PART: u32 = 8;
const TRIES_APART: Duration = Duration::from_millis(50);
const MISSED_MAX: Duration = Duration::from_secs(30);
/// Parked jobs are not tried for longer: those that were tried are tried again before, as a rule.
const STAYS_PARKED_FOR: Duration = Duration::from_secs(5);
/// A type counts as without handler for so long after a job of it was last tried, unless it is known before that none
/// waits any more: the longest pause between two attempts is shorter, as a rule.
const MISSING_FOR: Duration = Duration::from_secs(900);
/// Maximum number of types without handler that are remembered.
const MAX_MISSING: usize = 1_024;
/// Maximum number of subjects that are remembered with the time when they were first met; beyond that all are met anew.
const MAX_MET: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Discovery {
    announcements: RwLock<Announcements>,
    /// A job for a remote handler was seen since the last discovery.
    remote_seen: AtomicBool,
    /// Notified when a job is met whose handlers must be asked before more than one job at once may be there.
    pub(crate) new_subject_met: Notify,
    /// The types for which no handler was found, by subject, and whether there are any.
    missing: Mutex<HashMap<String, MissingHandler>>,
    any_missing: AtomicBool,
    /// Whether no handler was found for any of the subjects that are remembered.
    any_missed: AtomicBool,
}

/// What the node knows of the handlers of one subject.
#[derive(Debug)]
pub(crate) enum KnownHandlers {
    /// They were not asked yet, or long ago, or none was there when a job came for them.
    Unknown {
        /// Until when no job is tried, as no handler was found there.
        missed_until: Option<Instant>,
    },
    /// The subjects that they announce, each with its slots.
    Slots(Vec<(String, u32)>),
}

impl Discovery {
    pub(crate) fn saw_remote(&self) {
        self.remote_seen.store(true, Ordering::Relaxed);
    }

    /// Whether one was seen since the last call.
    pub(crate) fn take_remote_seen(&self) -> bool {
        self.remote_seen.swap(false, Ordering::Relaxed)
    }

    /// No handler was found for a job of this subject.
    pub(crate) fn missed(&self, subject: &str, job: &Job) {
        let (now, mut missing) = (now(), self.missing.lock().unpoisoned());
        if let Some(known) = missing.get_mut(subject) {
            known.looked_at = now;
        } else if missing.len() < MAX_MISSING {
            let (tenant, job_type) = (job.tenant.clone(), job.job_type.clone());
            tracing::warn!(%tenant, %job_type, "no handler is online: its jobs wait; handlers subscribe to {subject}");
            missing.insert(subject.to_owned(), MissingHandler { tenant, job_type, since: now, looked_at: now });
        }
        self.any_missing.store(true, Ordering::Relaxed);
    }

    /// A handler was found for a job of the subject that `subjects` returns first. It may be one for all tenants, who
    /// share the second, so their jobs are tried anew. Costs two loads if none was missing.
    pub(crate) fn found(&self, subjects: impl FnOnce() -> [String; 2]) {
        if !self.any_missing.load(Ordering::Relaxed) && !self.any_missed.load(Ordering::Relaxed) {
            return;
        }
        let [subject, of_all] = subjects();
        self.retain_missing(|missing, _| *missing != subject);
        let was_missed = |announcements: &Announcements| announcements.met.get(&subject).is_some_and(Met::is_missed);
        if was_missed(&self.announcements.read().unpoisoned()) {
            let mut announcements = self.announcements.write().unpoisoned();
            announcements.found(&of_all);
            self.any_missed.store(announcements.missed > 0, Ordering::Relaxed);
        }
    }

    pub(crate) fn misses_any(&self) -> bool {
        self.any_missing.load(Ordering::Relaxed)
    }

    /// Since when none was found for jobs of this subject.
    pub(crate) fn missing_since(&self, subject: &str) -> Option<Timestamp> {
        self.missing.lock().unpoisoned().get(subject).map(|missing| missing.since)
    }

    /// The types for which no handler was found, since a handler was last found.
    pub(crate) fn missing_handlers(&self) -> Vec<MissingHandler> {
        if !self.any_missing.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let forgotten = now().minus(MISSING_FOR);
        self.retain_missing(|_, known| known.looked_at > forgotten);
        let mut missing: Vec<MissingHandler> = self.missing.lock().unpoisoned().values().cloned().collect();
        missing.sort_by_key(|missing| missing.since);
        missing
    }

    /// The types without handler of which no job was tried since `at`: maybe none waits any more.
    pub(crate) fn untried_since(&self, at: Timestamp) -> Vec<MissingHandler> {
        self.missing.lock().unpoisoned().values().filter(|missing| missing.looked_at < at).cloned().collect()
    }

    /// No job waits for a handler of this subject, unless one was tried since `at`.
    pub(crate) fn none_waits(&self, subject: &str, at: Timestamp) {
        self.retain_missing(|missing, known| missing != subject || known.looked_at >= at);
    }

    fn retain_missing(&self, mut stays: impl FnMut(&String, &MissingHandler) -> bool) {
        let mut missing = self.missing.lock().unpoisoned();
        missing.retain(|subject, known| stays(subject, known));
        self.any_missing.store(!missing.is_empty(), Ordering::Relaxed);
    }

    /// Handlers were asked at `at`, and announced this.
    pub(crate) fn replace(&self, announced: Vec<Announced>, at: Instant) {
        if self.any_missing.load(Ordering::Relaxed) {
            let is_announced = |subject: &str| announced.iter().any(|service| falls_under(subject, &service.subject));
            self.retain_missing(|subject, _| !is_announced(subject));
        }
        let mut announcements = self.announcements.write().unpoisoned();
        announcements.replace(announced, at);
        self.any_missed.store(announcements.missed > 0, Ordering::Relaxed);
    }

    /// What handlers announced, unless they were last asked long ago.
    pub(crate) fn announced(&self) -> Option<Vec<Announced>> {
        let announcements = self.announcements.read().unpoisoned();
        announcements.at.filter(|at| at.elapsed() < HOLDS_FOR).map(|_| announcements.announced.clone())
    }

    /// No handler was there for jobs of this subject: the next ones are asked before they get jobs.
    pub(crate) fn forget(&self, subject: &str) {
        self.announcements.write().unpoisoned().forget(subject, Instant::now());
        self.any_missed.store(true, Ordering::Relaxed);
        self.new_subject_met.notify_one();
    }

    /// Whether parked jobs of a subject are better left there, because no handler was found a short while ago.
    pub(crate) fn keeps_parked(&self, subject: &str) -> bool {
        let announcements = self.announcements.read().unpoisoned();
        let for_long = announcements.pause_of(subject).max(STAYS_PARKED_FOR);
        announcements.missed_at(subject).is_some_and(|at| at.elapsed() < for_long)
    }

    /// What the handlers of a subject announced; if that is not known, discovery is notified to ask them.
    pub(crate) fn of(&self, subject: &str) -> KnownHandlers {
        let now = Instant::now();
        let announcements = self.announcements.read().unpoisoned();
        if announcements.knows(subject, now) {
            let announced =
                announcements.of(subject).filter_map(|service| Some((service.subject.clone(), service.slots?)));
            return KnownHandlers::Slots(announced.collect());
        }
        let (missed_at, is_met) = (announcements.missed_at(subject), announcements.met.contains_key(subject));
        let was_asked = missed_at < announcements.at;
        let missed_until = missed_at.map(|at| at + announcements.pause_of(subject));
        drop(announcements);
        if !is_met {
            self.announcements.write().unpoisoned().meet(subject, now);
        }
        if missed_at.is_none() || !was_asked {
            self.new_subject_met.notify_one();
        }
        KnownHandlers::Unknown { missed_until: missed_until.filter(|until| *until > now) }
    }

    /// The longest interval at which the handlers of a subject promised to signal.
    pub(crate) fn heartbeat(&self, subject: &str) -> Option<Duration> {
        let announcements = self.announcements.read().unpoisoned();
        announcements.of(subject).filter_map(|service| service.heartbeat).max()
    }
}

/// What remote handlers announced when they were last asked.
#[derive(Debug, Default)]
struct Announcements {
    /// Each endpoint that answered.
    announced: Vec<Announced>,
    at: Option<Instant>,
    /// Subjects that jobs are sent to.
    met: HashMap<String, Met>,
    /// For how many of them no handler was found.
    missed: usize,
}

#[derive(Debug)]
struct Met {
    /// When it was first met, or when last no handler was found there.
    at: Instant,
    /// Since when no handler was found there.
    missed_since: Option<Instant>,
}

impl Met {
    fn is_missed(&self) -> bool {
        self.missed_since.is_some()
    }
}

impl Announcements {
    /// Replaces all with what was announced to the question of `at`. A subject without a handler is forgotten once no
    /// job was tried there for long: none waits any more, and it is to slow no other.
    fn replace(&mut self, announced: Vec<Announced>, at: Instant) {
        (self.announced, self.at) = (announced, Some(at));
        if self.missed > 0 {
            self.met.retain(|_, met| !met.is_missed() || at.duration_since(met.at) < MISSING_FOR);
            self.missed = self.met.values().filter(|met| met.is_missed()).count();
        }
    }

    /// Remembers that a subject was met at `now`.
    fn meet(&mut self, subject: &str, now: Instant) {
        if !self.met.contains_key(subject) {
            self.remember(subject, Met { at: now, missed_since: None });
        }
    }

    /// No handler was there at `now`: older announcements say nothing about the next handlers.
    fn forget(&mut self, subject: &str, now: Instant) {
        let since = self.met.get(subject).and_then(|met| met.missed_since).unwrap_or(now);
        self.remember(subject, Met { at: now, missed_since: Some(since) });
    }

    /// When no handler was found there, unless one has announced itself since.
    fn missed_at(&self, subject: &str) -> Option<Instant> {
        let at = self.met.get(subject).filter(|met| met.is_missed())?.at;
        let is_there = self.at.is_some_and(|asked| asked > at) && self.of(subject).next().is_some();
        (!is_there).then_some(at)
    }

    /// How long after no handler was found for a subject the next job is tried. Where that is long, subjects have
    /// their turns spread over it: the handler that one of them finds may be for all.
    fn pause_of(&self, subject: &str) -> Duration {
        let mut hasher = DefaultHasher::new();
        subject.hash(&mut hasher);
        let spread = 0.1 + 1.8 * f64::from(hasher.finish() as u32) / f64::from(u32::MAX);
        let all = TRIES_APART * u32::try_from(self.missed).unwrap_or(u32::MAX);
        let met = self.met.get(subject);
        let away = met.and_then(|met| Some(met.at - met.missed_since?)).unwrap_or_default();
        (away / MISSED_PART).clamp(MISSED_FOR.0, MISSED_FOR.1).max(all.mul_f64(spread)).min(MISSED_MAX)
    }

    /// A handler was found, maybe for all subjects under this one.
    fn found(&mut self, of_all: &str) {
        let missed = self.met.iter_mut().filter(|(subject, met)| met.is_missed() && falls_under(subject, of_all));
        self.missed -= missed.map(|(_, met)| met.missed_since = None).count();
    }

    fn remember(&mut self, subject: &str, met: Met) {
        if self.met.len() >= MAX_MET {
            (self.met, self.missed) = (HashMap::new(), 0);
        }
        self.missed += usize::from(met.is_missed());
        let before = self.met.insert(subject.to_owned(), met);
        self.missed -= usize::from(before.is_some_and(|before| before.is_missed()));
    }

    /// The services that take jobs of this subject.
    fn of<'a>(&'a self, subject: &'a str) -> impl Iterator<Item = &'a Announced> {
        self.announced.iter().filter(move |service| falls_under(subject, &service.subject))
    }

    /// Whether it knows at `now` what holds for this subject. It does if the subject's handlers were asked after it was
    /// met, for they may be as new as it is; or if the announcements name slots for it, which it then shares with
    /// subjects that are known.
    fn knows(&self, subject: &str, now: Instant) -> bool {
        let Some(asked) = self.at.filter(|at| now.duration_since(*at) < HOLDS_FOR) else { return false };
        match self.met.get(subject) {
            Some(_) if self.missed_at(subject).is_some() => false,
            Some(met) if met.at <= asked => true,
            Some(met) if met.is_missed() => false,
            _ => self.of(subject).any(|service| service.slots.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(subject: &str, slots: Option<u32>) -> Announced {
        Announced { service: "s".to_owned(), subject: subject.to_owned(), slots, heartbeat: None, wrong: Vec::new() }
    }

    #[test]
    fn a_subject_is_known_once_its_handlers_were_asked_after_it_was_met() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut announcements = Announcements::default();
        announcements.meet("w.a", at(0));
        assert!(!announcements.knows("w.a", at(0)), "no handler was asked yet");
        announcements.replace(Vec::new(), at(1));
        assert!(announcements.knows("w.a", at(2)) && !announcements.knows("w.b", at(2)), "another may have come since");
        announcements.meet("w.b", at(2));
        announcements.meet("w.a", at(2));
        assert!(announcements.knows("w.a", at(3)) && !announcements.knows("w.b", at(3)), "asked before it was met");
        announcements.replace(Vec::new(), at(4));
        assert!(announcements.knows("w.b", at(5)));
        announcements.forget("w.b", at(5));
        assert!(!announcements.knows("w.b", at(6)) && announcements.knows("w.a", at(6)));
        assert!(!announcements.knows("w.a", at(4) + HOLDS_FOR), "that was long ago");
    }

    #[test]
    fn a_new_subject_of_known_slots_is_known() {
        let now = Instant::now();
        let mut announcements = Announcements::default();
        announcements.replace(vec![announced("w.*.a", Some(4)), announced("w.*.b", None)], now);
        assert!(
            announcements.knows("w.acme.a", now)
                && !announcements.knows("w.acme.b", now)
                && !announcements.knows("w.acme.c", now)
        );
        let later = now + Duration::from_secs(1);
        for subject in ["w.acme.a", "w.acme.b"] {
            announcements.meet(subject, later);
        }
        assert!(announcements.knows("w.acme.a", later) && !announcements.knows("w.acme.b", later));
        announcements.forget("w.acme.a", later);
        assert!(!announcements.knows("w.acme.a", later), "no handler was there");
    }

    /// Given a subject for which no handler was found, when its handlers were asked in vain, then that is no news; one
    /// that announces itself is, and one that is found counts for all tenants.
    #[test]
    fn a_subject_without_a_handler_is_tried_seldom_until_one_announces_itself_or_is_found() {
        let start = Instant::now();
        let mut announcements = Announcements::default();
        announcements.forget("w.a.call", start);
        announcements.replace(Vec::new(), start + Duration::from_millis(1));
        let later = start + Duration::from_millis(2);
        assert!(!announcements.knows("w.a.call", later) && announcements.missed_at("w.a.call").is_some());
        announcements.replace(vec![announced("w.*.call", None)], later);
        assert!(announcements.knows("w.a.call", later) && announcements.missed_at("w.a.call").is_none());
        for tenant in 0..100 {
            announcements.forget(&format!("w.{tenant}.call"), later);
        }
        announcements.forget("w.b.mail", later);
        assert_eq!(announcements.missed, 102);
        let pauses: Duration = (0..100).map(|tenant| announcements.pause_of(&format!("w.{tenant}.call"))).sum();
        assert!((4..6).contains(&(pauses / 100).as_secs()), "tries are {TRIES_APART:?} apart: {pauses:?}");
        announcements.found("w.*.call");
        assert_eq!((announcements.missed, announcements.pause_of("w.b.mail")), (1, MISSED_FOR.0));
        announcements.forget("w.b.mail", later + MISSED_FOR.0 * 16);
        assert_eq!(announcements.pause_of("w.b.mail"), MISSED_FOR.0 * 2, "an eighth of the time without a handler");
        announcements.forget("w.b.mail", later + MISSED_FOR.0 * 1_000);
        assert_eq!(announcements.pause_of("w.b.mail"), MISSED_FOR.1);
        assert!(announcements.missed_at("w.7.call").is_none() && announcements.missed_at("w.b.mail").is_some());
    }

    /// Given very many subjects without a handler, then each is tried now and then all the same; those of which no job
    /// was tried for long slow no other any more.
    #[test]
    fn subjects_that_nobody_tries_any_more_slow_no_other() {
        let start = Instant::now();
        let mut announcements = Announcements::default();
        for tenant in 0..5_000 {
            announcements.forget(&format!("w.{tenant}.call"), start);
        }
        assert_eq!((0..9).map(|at| announcements.pause_of(&format!("w.{at}.call"))).max(), Some(MISSED_MAX));
        let later = start + MISSING_FOR;
        announcements.forget("w.b.mail", later);
        announcements.meet("w.c.mail", start);
        announcements.replace(Vec::new(), later);
        assert_eq!((announcements.missed, announcements.met.len()), (1, 2));
        assert_eq!(announcements.pause_of("w.b.mail"), MISSED_FOR.0);
    }

    #[test]
    fn a_type_without_handler_is_forgotten_once_none_of_its_jobs_waits_unless_one_was_tried_meanwhile() {
        let (discovery, job) = (Discovery::default(), crate::tests::job("call", "r"));
        let before = now();
        discovery.missed("w.a.call", &job);
        assert!(discovery.untried_since(before).is_empty(), "one was tried just now");
        discovery.none_waits("w.a.call", before);
        assert_eq!(discovery.missing_handlers().len(), 1);
        let later = now().plus(Duration::from_secs(1));
        assert_eq!(discovery.untried_since(later), discovery.missing_handlers());
        discovery.none_waits("w.b.call", later);
        assert!(discovery.misses_any());
        discovery.none_waits("w.a.call", later);
        assert!(!discovery.misses_any() && discovery.missing_handlers().is_empty());
    }

    #[test]
    fn what_is_remembered_of_subjects_is_bounded() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        for number in 0..2 * MAX_MET {
            announcements.meet(&number.to_string(), now);
            assert!((1..=MAX_MET).contains(&announcements.met.len()));
        }
    }
}
