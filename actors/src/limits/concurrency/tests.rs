//! The table of slots without its actor: the cluster answers at once.

use std::collections::HashMap;
use std::time::Instant;

use longshore_domain::concurrency::session::Session;
use longshore_domain::policy::TypePolicy;
use longshore_domain::{JobOptions, Timestamp};

use super::steps::SlotTask;
use super::*;
use crate::runtime::clock::simulated;

const LEASE: Duration = Duration::from_secs(30);

impl SlotPermit {
    /// Until when it has them, as far as is known.
    pub(crate) fn lasts_until(&self) -> Instant {
        self.session.end()
    }
}

impl Slots {
    /// The name of the session under which the node has its slots.
    pub(crate) fn session_id(&self) -> SmolStr {
        self.known().session.id.clone()
    }

    /// How many limits the cluster is to be asked about.
    pub(crate) fn to_ask(&self) -> usize {
        self.known().due.len()
    }

    /// The cluster answers: another node has the one slot of each of them.
    pub(crate) fn are_taken(&self) {
        let ids: Vec<ConcurrencyId> = self.known().due.drain().collect();
        let ask = Ask { session: "other".into(), number: 1, keeps: 0, wants: 1, holds_for: Duration::ZERO };
        let record = SlotRecord::default().after(&ask, 1, |_, _| false);
        ids.iter().for_each(|id| self.learned(id, record.clone(), 1));
    }
}

/// A node's table, and the records of the cluster with their revisions.
struct Scene {
    slots: Arc<Slots>,
    records: HashMap<ConcurrencyId, (SlotRecord, u64)>,
}

impl Scene {
    fn new() -> Self {
        let of_type = TypePolicy { concurrency: Some(2), ..TypePolicy::default() };
        let types = [(JobType::parse("call").unwrap(), of_type)].into();
        let policies = Arc::new(Policies { types, ..Policies::default() });
        let slots = Arc::new(Slots::new(policies, Arc::default(), BucketSpace::default()));
        slots.session().confirmed(Instant::now(), LEASE);
        Self { slots, records: HashMap::new() }
    }

    fn take(&self, job_type: &str, key: Option<&str>) -> Result<SlotPermit, NoSlot> {
        let options = JobOptions { concurrency_key: key.map(str::to_owned), ..JobOptions::default() };
        let job = Job { options: Some(Box::new(options)), ..crate::tests::job(job_type, "r") };
        assert!(self.slots.applies_to(&job));
        self.slots.take(&job, None).map_err(|(no_slot, waits)| {
            assert!(!self.slots.have_changed(waits));
            no_slot
        })
    }

    /// Does what the keeper would do; returns how many records were written.
    fn keep(&mut self) -> usize {
        let mut written = 0;
        loop {
            let (steps, _) = self.slots.next_steps(9, &HashSet::new());
            if steps.is_empty() {
                return written;
            }
            for (id, step) in steps {
                let (record, revision) = self.records.entry(id.clone()).or_default();
                match step {
                    SlotTask::Read => self.slots.learned(&id, record.clone(), *revision),
                    SlotTask::Write(ask, base, expected, max) => {
                        assert_eq!(expected, *revision);
                        (*record, *revision) = (self.slots.after(&base, &ask, max), *revision + 1);
                        self.slots.won(&id, &ask, record.clone(), *revision);
                        written += 1;
                    }
                }
            }
        }
    }
}

impl Scene {
    /// A job of `call` with this key asks for its slots: what it waits for.
    fn waits_for(&self, key: &str) -> AwaitedLimit {
        let _ = self.take("call", Some(key));
        let key = KindKey::of_keys(None, Some(key));
        let id = self.slots.ids(&Tenant::default_tenant(), &JobType::parse("call").unwrap(), &key).remove(0).0;
        let number = Slots::number_of(&id);
        AwaitedLimit { number, version: self.slots.versions[usize::from(number)].load(Ordering::Relaxed) }
    }
}

#[test]
fn a_job_gets_the_slots_of_its_key_and_its_type_or_none() {
    let mut scene = Scene::new();
    assert_eq!(scene.take("call", Some("a")).err(), Some(NoSlot::Unknown(1)), "the key first");
    assert_eq!(scene.keep(), 1);
    assert_eq!(scene.take("call", Some("a")).err(), Some(NoSlot::Unknown(2)), "then the type");
    assert_eq!(scene.keep(), 1);
    let first = scene.take("call", Some("a")).unwrap();
    assert_eq!(scene.take("call", Some("a")).err(), Some(NoSlot::Full));
    assert_eq!(scene.take("other", Some("a")).err(), Some(NoSlot::Unknown(1)), "of another type");
    assert!(scene.take("call", None).is_err());
    scene.keep();
    let second = scene.take("call", None).unwrap();
    assert_eq!(scene.take("call", None).err(), Some(NoSlot::Full));
    drop(first);
    assert!(scene.take("call", None).is_ok() && scene.take("call", Some("a")).is_ok(), "without asking the cluster");
    drop(second);
}

/// Given a slot that this node has asked for, when the record that lists it is heard of before the answer of the write,
/// then it does not count as taken.
#[test]
fn a_slot_that_is_on_its_way_here_is_not_taken() {
    let scene = Scene::new();
    let asks = |scene: &Scene| assert_eq!(scene.take("other", Some("a")).err(), Some(NoSlot::Unknown(1)));
    let step = |scene: &Scene| scene.slots.next_steps(9, &HashSet::new()).0.remove(0);
    asks(&scene);
    let (id, _) = step(&scene);
    scene.slots.learned(&id, SlotRecord::default(), 0);
    let (_, SlotTask::Write(ask, base, _, max)) = step(&scene) else { panic!("it asks for one") };
    let record = scene.slots.after(&base, &ask, max);
    scene.slots.learned(&id, record.clone(), 1);
    asks(&scene);
    scene.slots.won(&id, &ask, record, 1);
    assert!(scene.take("other", Some("a")).is_ok());
}

#[test]
fn a_lost_session_has_no_slots_and_what_rests_on_it_stops() {
    let mut scene = Scene::new();
    let _ = scene.take("call", None);
    scene.keep();
    let permit = scene.take("call", None).unwrap();
    assert!(permit.spend(Instant::now()));
    let former = scene.slots.begin_again();
    assert!(!permit.spend(Instant::now()) && !former.is_idle_here());
    let stopped = futures_util::FutureExt::now_or_never(while_it_lasts(&permit, async { 7 }));
    assert_eq!(stopped, Some(None));
    assert_eq!(scene.take("call", None).err(), Some(NoSlot::Unknown(2)));
    scene.slots.session().confirmed(Instant::now(), LEASE);
    drop(permit);
    assert!(former.is_idle_here());
    scene.keep();
    assert!(scene.take("call", None).is_ok(), "the other slot: one is still the former session's");
    assert_eq!(scene.take("call", None).map(|_| ()).err(), None);
}

#[test]
fn a_job_that_waits_is_asked_about_again_once_its_limit_has_changed() {
    let mut scene = Scene::new();
    let waits = scene.waits_for("a");
    assert!(!scene.slots.have_changed(waits) && !scene.slots.are_behind());
    scene.keep();
    assert!(scene.slots.have_changed(waits));
}

/// Given a job that waits for a slot of its key, when its node stood still for so long that it gave the wish up, then
/// the job asks again, which is a new wish: no news of a limit without one would wake it.
#[test]
fn a_job_whose_wish_was_given_up_is_asked_about_again() {
    let scene = Scene::new();
    let waits = scene.waits_for("a");
    scene.slots.check_again();
    assert!(!scene.slots.have_changed(waits) && scene.slots.knows_any());
    simulated::set(Some((Instant::now() + Duration::from_secs(3), Timestamp::default())));
    scene.slots.check_again();
    assert!(scene.slots.have_changed(waits) && !scene.slots.knows_any());
    simulated::set(None);
}

/// Given a dead node with the only slot, when the jobs here are parked and ask for it now and then, then its session
/// ends a lease after it was first seen.
#[test]
fn a_silent_session_ends_though_no_job_asks_all_the_time() {
    let scene = Scene::new();
    let (start, dead) = (Instant::now(), SmolStr::new("other"));
    let session = Session { node: "other".into(), lease_ms: 6_000, ended_at: None };
    let sees_at = |second| {
        simulated::set(Some((start + Duration::from_secs(second), Timestamp::default())));
        scene.slots.check_again();
        let sessions = scene.slots.watched();
        let may_end = sessions.iter().filter_map(|session_id| scene.slots.found(session_id, Some((&session, 5))));
        (sessions.contains(&dead), may_end.max())
    };
    let _ = scene.take("other", Some("a"));
    scene.slots.are_taken();
    let _ = scene.take("other", Some("a"));
    assert_eq!([0, 3, 6, 7].map(sees_at), [(true, None), (true, None), (true, None), (true, Some(5))]);
    assert_eq!(sees_at(11), (false, None), "nobody wants it any more");
    simulated::set(None);
}

#[test]
fn many_limits_without_an_answer_hold_further_jobs_back_only_while_answers_come() {
    let mut scene = Scene::new();
    for key in 0..=BACKLOG {
        let _ = scene.take("other", Some(&key.to_string()));
    }
    scene.slots.answered();
    assert!(scene.slots.are_behind());
    scene.keep();
    assert!(!scene.slots.are_behind());
}

#[test]
fn jobs_without_limit_are_not_counted() {
    let scene = Scene::new();
    let kind = |job_type: &str, key| Kind {
        tenant: Tenant::default_tenant(),
        job_type: JobType::parse(job_type).unwrap(),
        key: KindKey::of_keys(None, key),
    };
    assert!(!scene.slots.has_limit_of(&kind("other", None)) && scene.slots.has_limit_of(&kind("other", Some("a"))));
    assert_eq!(scene.slots.room(&kind("other", None), Instant::now()), None);
    assert_eq!(scene.slots.room(&kind("call", Some("a")), Instant::now()), Some(1));
}

impl Scene {
    /// The limit of the type `call`.
    fn id(&self) -> ConcurrencyId {
        let key = KindKey::of_keys(None, None);
        self.slots.ids(&Tenant::default_tenant(), &JobType::parse("call").unwrap(), &key).remove(0).0
    }

    /// What the keeper would write next.
    fn next_write(&self) -> Option<(Ask, SlotRecord, u64, u32)> {
        let (steps, _) = self.slots.next_steps(9, &HashSet::new());
        steps.into_iter().find_map(|(_, step)| match step {
            SlotTask::Write(ask, base, revision, max) => Some((ask, base, revision, max)),
            SlotTask::Read => None,
        })
    }

    /// The cluster's record of `call` is read, as it is.
    fn reads(&self, record: &SlotRecord, revision: u64) {
        self.slots.learned(&self.id(), record.clone(), revision);
    }
}

#[test]
fn nothing_is_taken_before_the_session_that_has_it_is_stored() {
    let mut scene = Scene::new();
    scene.slots.begin_again();
    let _ = scene.take("call", None);
    scene.reads(&SlotRecord::default(), 0);
    assert!(scene.next_write().is_none());
    scene.slots.session().confirmed(Instant::now(), LEASE);
    assert_eq!(scene.keep(), 1);
    assert!(scene.take("call", None).is_ok());
}

/// Given a write that another node's came before, when the keeper goes on, then it reads the record anew and takes no
/// slot that is not there.
#[test]
fn a_write_that_another_came_before_gives_no_slot() {
    let mut scene = Scene::new();
    let _ = scene.take("call", None);
    scene.reads(&SlotRecord::default(), 0);
    let (ask, base, _, max) = scene.next_write().unwrap();
    let others = scene.slots.after(&base, &Ask { session: "other".into(), ..ask.clone() }, max);
    scene.slots.lost(&scene.id(), &ask);
    assert!(scene.take("call", None).is_err());
    let (steps, _) = scene.slots.next_steps(9, &HashSet::new());
    assert!(matches!(&steps[..], [(_, SlotTask::Read)]), "it does not know what the other wrote");
    scene.records.insert(scene.id(), (others, 5));
    scene.slots.read_again();
    scene.keep();
    let mut taken = Vec::new();
    while let Ok(permit) = scene.take("call", None) {
        taken.push(permit);
        scene.keep();
    }
    assert!(taken.len() < 2, "the other node has {} of the two", 2 - taken.len());
}

/// Given a slot that is given back, when another node's write comes first and this node hears of that before its own is
/// refused, then the slot is given back once more: the record would list it for as long as this node lives.
#[test]
fn a_slot_that_could_not_be_given_back_is_given_back_again() {
    let mut scene = Scene::new();
    let _ = scene.take("call", None);
    scene.keep();
    scene.slots.leave();
    let (ask, base, revision, max) = scene.next_write().unwrap();
    let other = Ask { session: "other".into(), keeps: 0, wants: 1, ..ask.clone() };
    let others = scene.slots.after(&base, &other, max);
    scene.records.insert(scene.id(), (others.clone(), revision + 1));
    scene.reads(&others, revision + 1);
    scene.slots.lost(&scene.id(), &ask);
    scene.slots.check_again();
    assert_eq!(scene.keep(), 1);
    let own = scene.slots.session().id.clone();
    let record = &scene.records[&scene.id()].0;
    assert_eq!((record.of(&own).slots, record.of("other").slots), (0, 1));
}

#[test]
fn at_most_so_many_limits_are_written_at_once_and_none_that_is_busy() {
    let scene = Scene::new();
    for key in ["a", "b", "c"] {
        assert!(scene.take("other", Some(key)).is_err());
    }
    let (first, _) = scene.slots.next_steps(2, &HashSet::new());
    assert_eq!(first.len(), 2);
    scene.slots.read_again();
    let busy: HashSet<ConcurrencyId> = first.iter().map(|(id, _)| id.clone()).collect();
    let (rest, _) = scene.slots.next_steps(9, &busy);
    assert!(rest.len() == 1 && !busy.contains(&rest[0].0));
    let (again, _) = scene.slots.next_steps(9, &HashSet::new());
    assert_eq!(again.len(), 2, "those that were busy have not been forgotten");
}

#[test]
fn a_node_that_leaves_gives_back_what_it_does_not_use() {
    let mut scene = Scene::new();
    let _ = scene.take("call", None);
    scene.keep();
    let permit = scene.take("call", None).unwrap();
    scene.slots.leave();
    scene.keep();
    let taken = |scene: &Scene| scene.records[&scene.id()].0.taken_beside("nobody", |_, _| false);
    assert_eq!((scene.slots.has_left(), taken(&scene)), (true, 1), "an attempt is at work with it");
    drop(permit);
    assert!(!scene.slots.has_left());
    scene.keep();
    assert_eq!((scene.slots.has_left(), taken(&scene)), (true, 0), "all slots are free for other nodes");
}

#[test]
fn another_nodes_wish_makes_this_one_look_at_its_slots_and_its_own_does_not() {
    let mut scene = Scene::new();
    let _ = scene.take("call", None);
    scene.keep();
    let limit = SmolStr::new(scene.id().to_string());
    let due = |scene: &Scene| scene.slots.known().due.len();
    assert_eq!(due(&scene), 0);
    let own = scene.slots.session().id.clone();
    scene.slots.wished(&own, std::slice::from_ref(&limit));
    assert_eq!(due(&scene), 0);
    scene.slots.wished("other", &[SmolStr::new("no limit"), limit]);
    assert_eq!(due(&scene), 1);
    assert!(scene.slots.knows_any());
}
