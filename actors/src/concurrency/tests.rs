//! The table of slots without its actor: the cluster answers at once.

use std::collections::HashMap;
use std::time::Instant;

use longshore_domain::policy::TypePolicy;
use longshore_domain::{JobOptions, Priority, Queue, RunId};

use super::steps::Step;
use super::*;

const LEASE: Duration = Duration::from_secs(30);

/// A node's table, and the records of the cluster with their revisions.
struct Scene {
    slots: Arc<Slots>,
    records: HashMap<ConcurrencyId, (Record, u64)>,
}

impl Scene {
    fn new() -> Self {
        let of_type = TypePolicy { concurrency: Some(2), ..TypePolicy::default() };
        let types = [(JobType::parse("call").unwrap(), of_type)].into();
        let policies = Arc::new(Policies { types, ..Policies::default() });
        let limits = Arc::new(Limits::new("n1", Arc::clone(&policies), Arc::default()));
        let slots = Arc::new(Slots::new(policies, limits, Arc::default()));
        slots.session().confirmed(Instant::now(), LEASE);
        Self { slots, records: HashMap::new() }
    }

    fn take(&self, job_type: &str, key: Option<&str>) -> Result<SlotPermit, NoSlot> {
        let options = JobOptions { concurrency_key: key.map(str::to_owned), ..JobOptions::default() };
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse(job_type).unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: Some(Box::new(options)),
        };
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
                    Step::Read => self.slots.learned(&id, record.clone(), *revision),
                    Step::Write(ask, base, expected, max) => {
                        assert_eq!(expected, *revision);
                        (*record, *revision) = (self.slots.after(&base, &ask, max), *revision + 1);
                        self.slots.won(&id, &ask, (record.clone(), *revision));
                        written += 1;
                    }
                }
            }
        }
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
    let _ = scene.take("call", Some("a"));
    let key = KindKey::of_keys(None, Some("a"));
    let id = scene.slots.ids(&Tenant::default_tenant(), &JobType::parse("call").unwrap(), &key).remove(0).0;
    let number = Slots::number_of(&id);
    let waits = Waits { number, version: scene.slots.versions[usize::from(number)].load(Ordering::Relaxed) };
    assert!(!scene.slots.have_changed(waits) && !scene.slots.are_behind());
    scene.keep();
    assert!(scene.slots.have_changed(waits));
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
