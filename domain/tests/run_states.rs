//! The table of states in `docs/run-states.md` is what the code does.

#![expect(clippy::unwrap_used, reason = "all of it is test; clippy excepts only the functions marked as such")]

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_domain::outcome::Outcome;
use longshore_domain::policy::TypePolicy;
use longshore_domain::run::{DeferReason, PutBack, RunResult};
use longshore_domain::settlement::{Settlement, Terms, settle};
use longshore_domain::{
    ErrorKind, Failure, Job, JobType, Lane, Priority, Queue, Run, RunId, RunState, Tenant, Timestamp,
};

const DOCUMENT: &str = include_str!("../../docs/run-states.md");

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn failure() -> Failure {
    Failure::new(ErrorKind::Retryable, "it failed")
}

fn run_id() -> RunId {
    RunId::derived(&Lane::new(&Queue::main(), Priority::DEFAULT), 7)
}

/// A run in this state, on the way that leads there.
fn in_state(state: RunState) -> Run {
    let job = Job {
        tenant: Tenant::default_tenant(),
        queue: Queue::main(),
        priority: Priority::DEFAULT,
        job_type: JobType::parse("noop").unwrap(),
        run_id: run_id(),
        options: None,
    };
    let mut run = Run::new(&job, 5, at(1));
    run.enqueued_at = Some(at(1));
    match state {
        RunState::Enqueued => {}
        RunState::Scheduled => run.settle(Settlement::Schedule(at(9)), at(2)),
        _ => run.begin(1, &"node".into(), at(2)),
    }
    match state {
        RunState::Retrying => run.settle(Settlement::Retry { at: at(9), failure: failure() }, at(3)),
        RunState::Dead => run.settle(Settlement::Dead(failure()), at(3)),
        _ => {}
    }
    assert_eq!(run.state, state);
    run
}

/// Does to the run what the words say.
fn happen(run: &mut Run, what: &str) {
    let put_back = (run.state == RunState::Running).then_some(PutBack::Snoozed);
    let settlement = match what {
        "begins" => return run.begin(run.next_attempt(), &"node".into(), at(5)),
        "falls due" => return run.fall_due(at(5)),
        "is replayed" => return run.replay(at(5)),
        "is discarded" => return run.discard(at(5)),
        "is scheduled again" => Settlement::Schedule(at(9)),
        "is deferred" => Settlement::Defer { at: at(9), reason: DeferReason::Snoozed, put_back },
        "is detached" => {
            let detached = Outcome::Detached { token: "t".into(), lasts: Duration::from_secs(1) };
            let policy = TypePolicy::default();
            let terms = Terms { run, policy: &policy, backoff: &policy.backoff, deadline: None, never_served: None };
            settle(detached, terms, at(5), 0.5)
        }
        "is parked" => Settlement::Park { since: at(1), reason: Some(DeferReason::RateLimited) },
        "expires" => Settlement::Expire,
        "is cancelled" => Settlement::Cancel,
        "is a duplicate" => Settlement::Duplicate(run_id()),
        "fails for good" => Settlement::Dead(failure()),
        "fails, attempts are left" => Settlement::Retry { at: at(9), failure: failure() },
        "completes" => Settlement::Complete(RunResult::default()),
        "is released" => Settlement::Release,
        other => panic!("the document says {other:?}, which nothing does"),
    };
    run.settle(settlement, at(5));
}

#[test]
fn the_table_of_states_is_what_the_code_does() {
    let all = ["scheduled", "enqueued", "running", "retrying", "dead"];
    let states = [RunState::Scheduled, RunState::Enqueued, RunState::Running, RunState::Retrying, RunState::Dead];
    let mut left = BTreeSet::new();
    let table = DOCUMENT.split("## What a state carries").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    for row in rows.skip(1) {
        let [from, what, to] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}: three columns") };
        let state = states[all.iter().position(|name| *name == from).unwrap_or_else(|| panic!("{row}: unknown state"))];
        let mut run = in_state(state);
        happen(&mut run, what);
        assert_eq!(run.state.as_str(), to, "{row}");
        assert!(left.insert((from, what)), "{row}: stands there twice");
    }
    assert_eq!(left.len(), 31, "every row was read");
}
