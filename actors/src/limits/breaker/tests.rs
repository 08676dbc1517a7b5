//! What a node knows of its breakers, without an actor and without a server.

use longshore_domain::JobOptions;
use longshore_domain::breaker::record::By;
use longshore_domain::policy::TypePolicy;

use super::*;

const LEASE: Duration = Duration::from_secs(30);

fn breakers(policy: BreakerPolicy) -> Arc<Breakers> {
    let of_type = TypePolicy { breaker: Some(policy), ..TypePolicy::default() };
    let types = [(JobType::parse("call").unwrap(), of_type)].into();
    let breakers = Breakers::new(Arc::new(Policies { types, ..Policies::default() }), "n1", Arc::default());
    breakers.were_read();
    Arc::new(breakers)
}

fn job(job_type: &str, limit_key: Option<&str>) -> Job {
    let options = JobOptions { limit_key: limit_key.map(str::to_owned), ..JobOptions::default() };
    Job { options: limit_key.map(|_| Box::new(options)), ..crate::tests::job(job_type, "r") }
}

/// Lets a job start, and has it end so.
fn ends(breakers: &Arc<Breakers>, job: &Job, signal: Signal) {
    let Some(Admitted::Go(pass)) = breakers.admit(job) else { panic!("it may not start") };
    pass.ended(signal);
}

/// Writes the steps that are due, in order, as if no other node wrote; returns how many there were.
fn write(breakers: &Breakers, revision: &mut u64) -> usize {
    let (steps, _) = breakers.next_steps(9, LEASE);
    for of in &steps {
        let ((number, step), (known, _)) = (breakers.doing(of).unwrap(), breakers.stored(of));
        let policy = breakers.policy(&of.job_type).unwrap();
        let by = By { writer: &breakers.writer, number, now: now(), chance: 0.0, policy, lease: LEASE };
        if let Some(next) = known.unwrap_or_else(|| Breaker::new(of.clone(), now())).after(&step, by) {
            *revision += 1;
            breakers.learned(next, *revision);
        }
        breakers.settled(of);
    }
    steps.len()
}

#[test]
fn a_type_without_failures_has_no_entry_and_one_without_settings_no_breaker() {
    let breakers = breakers(BreakerPolicy::default());
    assert!(breakers.admit(&job("other", None)).is_none());
    for _ in 0..100 {
        ends(&breakers, &job("call", None), Signal::Success);
    }
    assert!(breakers.table().views.is_empty() && breakers.next_steps(9, LEASE) == (vec![], false));
}

#[test]
fn nothing_starts_before_the_records_were_read() {
    let breakers = breakers(BreakerPolicy::default());
    breakers.was_read.store(false, Ordering::Relaxed);
    assert!(matches!(breakers.admit(&job("call", None)), Some(Admitted::WhenRead)));
    breakers.were_read();
    assert!(matches!(breakers.admit(&job("call", None)), Some(Admitted::Go(_))));
}

#[test]
fn failures_are_written_and_open_the_breaker_of_their_key_alone() {
    let breakers = breakers(BreakerPolicy { failures: 2, per_key: true, ..BreakerPolicy::default() });
    let (bad, good) = (job("call", Some("bad.example")), job("call", Some("good.example")));
    let mut revision = 0;
    for _ in 0..2 {
        ends(&breakers, &bad, Signal::Failure);
    }
    assert!(matches!(breakers.admit(&bad), Some(Admitted::WhenChanged)), "it is about to open");
    assert_eq!(write(&breakers, &mut revision), 1);
    assert!(matches!(breakers.admit(&bad), Some(Admitted::NotBefore(_))));
    ends(&breakers, &good, Signal::Failure);
    assert!(matches!(breakers.admit(&good), Some(Admitted::Go(_))));
    assert_eq!(breakers.clean().into_values().collect::<Vec<_>>(), [2], "the worst of the type's");
}

#[test]
fn a_probe_that_no_job_ends_is_given_back() {
    let cool_down = Duration::from_millis(1);
    let policy = BreakerPolicy { failures: 1, cool_down, max_cool_down: cool_down, ..BreakerPolicy::default() };
    let (breakers, job, mut revision) = (breakers(policy), job("call", None), 0);
    ends(&breakers, &job, Signal::Failure);
    write(&breakers, &mut revision);
    std::thread::sleep(2 * cool_down);
    assert!(matches!(breakers.admit(&job), Some(Admitted::WhenChanged)), "it asks for a probe");
    write(&breakers, &mut revision);
    let Some(Admitted::Go(pass)) = breakers.admit(&job) else { panic!("it has the probe") };
    assert!(pass.is_probe() && matches!(breakers.admit(&job), Some(Admitted::WhenChanged)));
    drop(pass);
    assert_eq!(write(&breakers, &mut revision), 1);
    assert!(matches!(breakers.admit(&job), Some(Admitted::WhenChanged)), "it asks for another");
    write(&breakers, &mut revision);
    ends(&breakers, &job, Signal::Success);
    write(&breakers, &mut revision);
    assert!(matches!(breakers.admit(&job), Some(Admitted::Go(pass)) if !pass.is_probe()));
}

#[test]
fn there_is_a_bound_and_breakers_beyond_it_do_not_open() {
    let breakers = breakers(BreakerPolicy { failures: 1, per_key: true, ..BreakerPolicy::default() });
    let host = |number: usize| job("call", Some(&format!("h{number}.example")));
    for number in 0..MAX_BREAKERS + 10 {
        ends(&breakers, &host(number), Signal::Failure);
    }
    assert_eq!(breakers.table().views.len(), MAX_BREAKERS);
    assert!(matches!(breakers.admit(&host(MAX_BREAKERS + 1)), Some(Admitted::Go(_))));
}
