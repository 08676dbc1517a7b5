//! Every call of an attempt is cut off once, in each way there is: it is lost, its answer is lost, or its node dies
//! before or after it. Whatever was cut off, the run comes to its right end, all of its events are in the log once, a
//! dead run has one dead letter, and nothing is left in the lane.

use std::rc::Rc;

use longshore_backbone::claims::Claim;
use longshore_backbone::fingerprint::Fingerprint;
use longshore_domain::job::Unique;
use longshore_domain::outcome::Outcome;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, JobOptions, Run, RunState};

use super::begin::held_by;
use super::node::Node;
use super::server::{Fault, MemoryServer, RUN, SEQUENCE, at, check_end, id};
use super::{LEASE, completed, failed, failed_for};

const FAULTS: [Fault; 4] = [Fault::Lost, Fault::AnswerLost, Fault::DiesBefore, Fault::DiesAfter];
/// A job that comes more often than this never ends.
const DELIVERIES: u32 = 20;
/// No way of a job has so many calls.
const CALLS: u32 = 60;

/// One way of a job.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    /// Its idempotency key.
    key: Option<&'static str>,
    unique: Unique,
    given: fn(&MemoryServer),
    handler: fn(&Run) -> Outcome,
    /// Its first delivery may take the fast path.
    fast: bool,
    ends: &'static [RunState],
}

fn ways() -> Vec<Way> {
    use RunState::{Cancelled, Completed, Dead, Duplicate};
    let plain = Way {
        name: "completes",
        key: None,
        unique: Unique::Window,
        given: |_| (),
        handler: |_| completed(),
        fast: true,
        ends: &[Completed],
    };
    vec![
        Way { name: "is claimed", fast: false, ..plain },
        Way {
            name: "fails twice",
            handler: |run| if run.attempt < 3 { failed_for(LEASE) } else { completed() },
            ..plain
        },
        Way {
            name: "fails twice and is held locally",
            handler: |run| if run.attempt < 3 { failed_for(LEASE / 100) } else { completed() },
            ..plain
        },
        Way { name: "dies", handler: |_| failed(ErrorKind::Permanent), ends: &[Dead], ..plain },
        Way { name: "is snoozed", handler: |run| once(run, Outcome::Snoozed(LEASE)), ..plain },
        Way { name: "is released", handler: |run| once(run, Outcome::Released), ..plain },
        Way { name: "finds no handler", handler: |run| once(run, Outcome::NoHandler), fast: false, ..plain },
        Way { name: "is cancelled", handler: |_| Outcome::Cancelled, ends: &[Cancelled], ..plain },
        Way { name: "has a key", key: Some("k"), ..plain },
        Way {
            name: "has another run's key",
            key: Some("k"),
            given: |server| server.has_claim("k", claim("r1", true)),
            ends: &[Duplicate],
            ..plain
        },
        Way { name: "takes a key over", key: Some("k"), given: has_died_in_submit, ..plain },
        plain,
    ]
    .into_iter()
    .chain(ways_of_keys_given_back(plain))
    .collect()
}

/// Ways of jobs whose key is free again once they start or end.
fn ways_of_keys_given_back(plain: Way) -> Vec<Way> {
    use RunState::{Dead, Duplicate};
    vec![
        Way { name: "gives its key back", key: Some("k"), unique: Unique::Active, ..plain },
        Way {
            name: "fails and gives its key back",
            key: Some("k"),
            unique: Unique::Queued,
            handler: |_| failed(ErrorKind::Permanent),
            ends: &[Dead],
            ..plain
        },
        Way {
            name: "takes a key that was given back",
            key: Some("k"),
            unique: Unique::Active,
            given: has_given_its_key_back,
            ..plain
        },
        Way {
            name: "has a key that another run has until it ends",
            key: Some("k"),
            unique: Unique::Active,
            given: has_the_key_and_waits,
            ends: &[Duplicate],
            ..plain
        },
        Way { name: "has the place of another run", key: Some("k"), given: has_died_in_replacing, ..plain },
    ]
}

/// The first time this outcome, then success.
fn once(run: &Run, outcome: Outcome) -> Outcome {
    let was_put_back = run.deferrals > 0 || run.attempts.iter().any(|attempt| attempt.start > 1);
    if was_put_back || run.attempt > 1 { completed() } else { outcome }
}

fn claim(run: &str, published: bool) -> Claim {
    Claim {
        run_id: id(run),
        fingerprint: Fingerprint::default(),
        unique: Unique::default(),
        published,
        taken_from: Vec::new(),
    }
}

/// A run that has a key until it has ended, and has ended.
fn has_given_its_key_back(server: &MemoryServer) {
    let mut run = other(server);
    run.begin(1, &"n2".into(), server.now());
    run.settle(Settlement::Complete(RunResult::None), server.now());
    run.held_by = Some(held_by(9));
    server.has_record(run);
    server.has_claim("k", Claim { unique: Unique::Active, ..claim("r1", true) });
}

/// A run that has a key until it has ended, and waits.
fn has_the_key_and_waits(server: &MemoryServer) {
    server.has_record(Run { published: true, seal: "5ea1".into(), ..other(server) });
    server.has_claim("k", Claim { unique: Unique::Active, ..claim("r1", true) });
}

/// A `submit` of this job died that had made another run's way for it.
fn has_died_in_replacing(server: &MemoryServer) {
    has_the_key_and_waits(server);
    server.changes("r1", |run| run.make_way(id(RUN), at(1)));
}

fn other(server: &MemoryServer) -> Run {
    let job = longshore_domain::Job {
        tenant: longshore_domain::Tenant::default_tenant(),
        queue: longshore_domain::Queue::main(),
        priority: longshore_domain::Priority::DEFAULT,
        job_type: longshore_domain::JobType::parse("t").unwrap(),
        run_id: id("r1"),
        options: None,
    };
    Run::new(&job, 3, server.now())
}

/// A `submit` of another job with the key died between its record and its job.
fn has_died_in_submit(server: &MemoryServer) {
    server.has_record(Run { seal: "5ea1".into(), ..other(server) });
    server.has_claim("k", claim("r1", false));
}

/// Plays a way to its end; false if it has fewer calls than `call`.
fn play(way: &Way, call: u32, fault: Fault) -> bool {
    let server = Rc::new(MemoryServer::new());
    (way.given)(&server);
    let (key, unique) = (way.key.map(str::to_owned), way.unique);
    let options = JobOptions { idempotency_key: key, unique, ..JobOptions::default() };
    server.publish(SEQUENCE, way.key.is_some().then_some(&options));
    server.breaks(call, fault);
    let mut node = Node::new("n0", &server);
    for delivery in 0..DELIVERIES {
        let Some(mut message) = server.lane.borrow().first().cloned() else {
            if server.schedules.borrow().is_empty() {
                break;
            }
            server.pass(LEASE);
            server.fire();
            continue;
        };
        let assignment = match way.fast {
            true => node.receives(&mut message),
            false => node.receives_below_the_mark(&mut message),
        };
        for stored in server.lane.borrow_mut().iter_mut().filter(|stored| stored.sequence == message.sequence) {
            stored.delivered = message.delivered;
        }
        if !node.works(assignment, &mut |run| (way.handler)(run)) {
            node = Node::new(&format!("n{}", delivery + 1), &server);
        }
        // It comes again after its lease.
        server.pass(LEASE);
    }
    let place = format!("{}, call {call}, {fault:?}:\n{:#?}", way.name, server.take_noted());
    let run = server.last_run();
    assert!(server.lane.borrow().is_empty(), "a job is left in the lane: {place}");
    // A holder that dies at work loses an attempt; a job that dies for good has been refused by its handler.
    let ended = way.ends.contains(&run.state.name());
    assert!(ended, "it ended as {:?}: {place}", run.state);
    check_end(&server, &run, &place);
    // The claim of an ended run that gives its key back was written for the last time with the shortest window.
    if way.unique != Unique::Window && server.claim("k").is_some_and(|claim| claim.run_id == run.run_id) {
        assert!(server.is_given_back("k"), "its key is not given back: {place}");
    }
    server.is_broken()
}

#[test]
fn whatever_call_is_cut_off_the_run_comes_to_its_end() {
    for way in ways() {
        for fault in FAULTS {
            let calls = (0..CALLS).take_while(|call| play(&way, *call, fault)).count();
            assert!((2..CALLS as usize).contains(&calls), "{}: {calls} calls", way.name);
        }
    }
}
