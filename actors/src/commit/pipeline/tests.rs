//! The pipeline against a server in memory that answers in any order, late, twice or not at all, and refuses; and with
//! committers that die.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt as _;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::refusal::Refusal;
use longshore_backbone::wire::subject::Names;
use longshore_chance::Chance;
use longshore_domain::follow_up::FollowUp;
use longshore_domain::publication::Published;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Run, Timestamp};
use tokio::sync::mpsc;

use super::*;
use crate::commit::{AfterCommit, PublishedJob};
use crate::ports::encode::{Author, Destination};

const RUNS: usize = 12;
const WRONG_SEQUENCE: u64 = 10_071;

struct Here(Names);

impl Destination for Here {
    fn names(&self) -> &Names {
        &self.0
    }

    fn max_in_record(&self) -> usize {
        usize::MAX
    }
}

/// A message that was sent: the record of a run, or a batch under its id.
#[derive(Debug, Clone)]
enum Message {
    Record(String),
    Batch { tenant: String, id: String, body: Bytes },
}

#[derive(Default)]
struct Memory {
    /// Sent, and neither answered nor lost.
    open: Vec<(u64, Message)>,
    records: BTreeSet<String>,
    /// Runs that another node has.
    taken: BTreeSet<String>,
    /// The ids of stored batches, and the lines of each tenant.
    ids: BTreeSet<String>,
    log: BTreeMap<String, Vec<u8>>,
    /// What happened to each run, in order.
    said: RefCell<Vec<String>>,
    unclear: RefCell<VecDeque<Box<Commit>>>,
    following: RefCell<VecDeque<Box<Commit>>>,
    /// The committer dies while it sends the next message.
    dies: bool,
    /// It dies while it waits to send a refused batch again.
    dies_before_a_repeat: bool,
}

impl Memory {
    fn say(&self, what: &str, commit: &Commit) {
        self.said.borrow_mut().push(format!("{what} {}", commit.run.run_id));
    }
}

impl Outlets for Memory {
    fn now(&self) -> Instant {
        Instant::now()
    }

    async fn send(&mut self, number: u64, what: &Sent) {
        if std::mem::take(&mut self.dies) {
            return std::future::pending().await;
        }
        let message = match what {
            Sent::Record(commit) => Message::Record(commit.run.run_id.to_string()),
            Sent::Batch { tenant, id, body, .. } => {
                Message::Batch { tenant: tenant.to_string(), id: id.clone(), body: body.clone() }
            }
        };
        self.open.push((number, message));
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        for (subject, _) in events.live() {
            let subject = String::from_utf8_lossy(&subject).into_owned();
            self.said.borrow_mut().push(format!("live {}", subject.split('.').nth(5).unwrap_or_default()));
        }
    }

    async fn end(&self, commit: Box<Commit>) {
        self.say("end", &commit);
        assert!(commit.after.into_ack_token().and_then(AckToken::into_ack).is_some(), "its delivery ends");
    }

    fn clear_up(&self, commit: Box<Commit>) {
        self.unclear.borrow_mut().push_back(commit);
    }

    fn follow(&self, commit: Box<Commit>) {
        self.say("follow", &commit);
        self.following.borrow_mut().push_back(commit);
    }

    async fn before_repeat(&self) {
        if self.dies_before_a_repeat {
            std::future::pending().await
        }
    }

    fn is_silent(&mut self, _: &Sent, _: Instant) {}
    fn is_answered(&mut self, _: &Sent) {}
}

/// Nothing here waits, so a future is done at its first step.
fn done<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing waits in memory")
}

fn pipeline() -> Pipeline {
    Pipeline::new(4_000, Arc::default(), None)
}

/// The completed run of this number.
fn commit(number: usize, ack_token: AckToken) -> Box<Commit> {
    let job =
        Job { tenant: Tenant::parse(["a", "b"][number % 2]).unwrap(), ..crate::tests::job("t", &format!("r{number}")) };
    let now = Timestamp::from_millis(1_000);
    let mut run = Box::new(Run::new(&job, 1, now));
    run.begin(1, &"n".into(), now);
    run.settle(Settlement::Complete(RunResult::None), now);
    let author = Author { node: "n", server: &Here(Names::new("longshore")) };
    let mut commit = Commit::to_write(run, PublishedJob::default(), 0, Published::nothing(), author);
    commit.after = AfterCommit::Ack(ack_token);
    // What is written then does not matter here.
    commit.follow_up = number.is_multiple_of(3).then_some(FollowUp::DeadLetter);
    Box::new(commit)
}

struct World {
    chance: Chance,
    memory: Memory,
    pipeline: Pipeline,
}

impl World {
    /// One thing happens, whatever it is.
    fn step(&mut self) {
        let Self { chance, memory, pipeline } = self;
        match chance.below(12) {
            0..=4 => self.answers(),
            5 => {
                pipeline.batches.fall_due();
                done(pipeline.send_batches(memory));
            }
            6 => done(pipeline.send_batches(memory)),
            7 => self.clears_up(),
            8 => {
                let followed = memory.following.borrow_mut().pop_front();
                followed.into_iter().for_each(|commit| done(memory.end(commit)));
            }
            9 if !memory.open.is_empty() => {
                let at = chance.below(u32::try_from(memory.open.len()).unwrap()) as usize;
                memory.open.swap_remove(at);
            }
            10 => done(pipeline.send_again(Duration::ZERO, memory)),
            // Another committer begins, with a window of its own.
            11 if chance.hits(3_000) => {
                memory.open.clear();
                pipeline.tidy();
                done(pipeline.send_again(Duration::ZERO, memory));
            }
            _ => {}
        }
    }

    /// The server comes to one of the messages; its answer may be lost, or say that it cannot be taken now.
    fn answers(&mut self) {
        let Self { chance, memory, pipeline } = self;
        let Some(last) = u32::try_from(memory.open.len()).unwrap().checked_sub(1) else { return };
        let (number, message) = memory.open.swap_remove(chance.below(last + 1) as usize);
        let refused = |err_code| PublishAnswer::Refused(Refusal { err_code, description: String::new() });
        let answer = match message {
            _ if chance.hits(500) => PublishAnswer::NoResponders,
            Message::Record(run) if memory.records.contains(&run) => refused(WRONG_SEQUENCE),
            // Another node has the run, now and ever after.
            Message::Record(run) if memory.taken.contains(&run) || chance.hits(500) => {
                memory.taken.insert(run);
                refused(WRONG_SEQUENCE)
            }
            Message::Record(run) => {
                memory.said.get_mut().push(format!("record {run}"));
                memory.records.insert(run);
                PublishAnswer::Stored(number)
            }
            Message::Batch { .. } if chance.hits(1_000) => refused(10_077),
            Message::Batch { tenant, id, body } => {
                if memory.ids.insert(id) {
                    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        let event: serde_json::Value = serde_json::from_slice(line).expect("whole lines");
                        memory.said.get_mut().push(format!("log {}", event["run_id"].as_str().unwrap()));
                    }
                    memory.log.entry(tenant).or_default().extend_from_slice(&body);
                }
                PublishAnswer::Stored(number)
            }
        };
        if !chance.hits(1_000) {
            done(pipeline.answered(number, answer, memory));
        }
    }

    fn clears_up(&mut self) {
        let Self { memory, pipeline, .. } = self;
        let Some(mut commit) = memory.unclear.borrow_mut().pop_front() else { return };
        if memory.records.contains(commit.run.run_id.as_str()) {
            commit.written(1);
            done(pipeline.publish_events(commit, memory));
        } else {
            memory.say("over", &commit);
            commit.after.into_ack_token().unwrap().abandon();
        }
    }

    fn play(seed: u64) -> Self {
        let mut world = Self { chance: Chance::new(seed), memory: Memory::default(), pipeline: pipeline() };
        let (returns, mut returned) = mpsc::unbounded_channel();
        let make = AckToken::without_connection(returns);
        let (flushed, mut is_flushed) = ractor::concurrency::oneshot();
        let mut flushed = Some(flushed);
        let mut number = 0;
        for _ in 0..20_000 {
            if number < RUNS && world.chance.hits(2_000) {
                let input = Input::Commit(commit(number, make(&number.to_string())));
                done(world.pipeline.take(input, &mut world.memory));
                number += 1;
                if number == RUNS {
                    world.pipeline.flushes.push(flushed.take().unwrap().into());
                }
            }
            world.step();
            let is_over = number == RUNS && world.pipeline.in_flight() == 0;
            world.pipeline.answer_flushes(number == RUNS);
            if number == RUNS && is_flushed.try_recv().is_ok() {
                assert!(is_over, "seed {seed}: flushed while commits are under way");
                assert!(returned.try_recv().is_err(), "seed {seed}: a delivery was dropped");
                return world;
            }
        }
        panic!("seed {seed}: never flushed: {:?}", world.memory.said.borrow());
    }
}

#[test]
fn a_commit_goes_through_its_steps_in_order_whatever_the_server_does() {
    for seed in 0..400 {
        let world = World::play(seed);
        let said = world.memory.said.borrow();
        for number in 0..RUNS {
            let run = format!("r{number}");
            let of_it: Vec<&str> = said.iter().filter_map(|line| line.strip_suffix(&format!(" {run}"))).collect();
            let follows: &[&str] = if number % 3 == 0 { &["follow", "end"] } else { &["end"] };
            let whole = [&["record", "live", "live", "live", "log", "log", "log"], follows].concat();
            assert!(of_it == whole || of_it == ["over"], "seed {seed}, {run}: {of_it:?}");
        }
    }
}

#[test]
fn the_lines_of_a_commit_stand_together_in_the_log() {
    for seed in 0..100 {
        for (tenant, log) in World::play(seed).memory.log {
            let lines = String::from_utf8(log).unwrap();
            let ids: Vec<String> = lines
                .lines()
                .map(|line| {
                    serde_json::from_str::<serde_json::Value>(line).unwrap()["run_id"].as_str().unwrap().to_owned()
                })
                .collect();
            assert!(
                ids.chunks(3).all(|of_run| of_run.iter().all(|id| *id == of_run[0])),
                "seed {seed}, {tenant}: {ids:?}"
            );
        }
    }
}

#[test]
fn what_a_committer_died_over_is_sent_again_under_its_own_number() {
    let (mut pipeline, mut memory) = (pipeline(), Memory::default());
    let (returns, mut returned) = mpsc::unbounded_channel();
    let make = AckToken::without_connection(returns);
    done(pipeline.take(Input::Commit(commit(1, make("1"))), &mut memory));
    memory.dies = true;
    {
        let mut dies = pin!(pipeline.take(Input::Commit(commit(2, make("2"))), &mut memory));
        assert!(matches!(dies.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    }
    memory.open.clear();
    pipeline.tidy();
    done(pipeline.send_again(Duration::ZERO, &mut memory));
    done(pipeline.take(Input::Commit(commit(4, make("4"))), &mut memory));
    let sent: Vec<String> = memory.open.iter().map(|(number, message)| format!("{number} {message:?}")).collect();
    assert_eq!(sent, [r#"0 Record("r1")"#, r#"1 Record("r2")"#, r#"2 Record("r4")"#]);
    assert!(returned.try_recv().is_err(), "none was dropped");
}

/// Whether the committer goes on; if not, it is dropped at this step.
fn survives(step: impl Future<Output = ()>) -> bool {
    let mut step = pin!(step);
    step.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Lines of a start, which no other node writes.
fn lines(tenant: &str) -> Input {
    Input::Line(Tenant::parse(tenant).unwrap(), Bytes::from(format!("a line of {tenant}")))
}

/// What the next committer finds: the bodies of the batches that are sent again.
fn left_by_a_dead_committer(pipeline: &mut Pipeline, memory: &mut Memory) -> Vec<String> {
    memory.open.clear();
    pipeline.tidy();
    done(pipeline.send_again(Duration::ZERO, memory));
    done(pipeline.send_batches(memory));
    let body = |message: &Message| match message {
        Message::Batch { body, .. } => String::from_utf8(body.to_vec()).unwrap(),
        Message::Record(run) => run.clone(),
    };
    memory.open.iter().map(|(_, message)| body(message)).collect()
}

#[test]
fn lines_whose_batch_was_refused_outlive_a_committer_that_dies_before_it_repeats_it() {
    let (mut pipeline, mut memory) = (pipeline(), Memory { dies_before_a_repeat: true, ..Memory::default() });
    done(pipeline.take(lines("a"), &mut memory));
    pipeline.batches.fall_due();
    done(pipeline.send_batches(&mut memory));
    let refused = PublishAnswer::Refused(Refusal { err_code: 10_077, description: String::new() });
    assert!(!survives(pipeline.answered(0, refused, &mut memory)));
    assert_eq!(left_by_a_dead_committer(&mut pipeline, &mut memory), ["a line of a\n"]);
}

#[test]
fn lines_of_all_tenants_outlive_a_committer_that_dies_while_it_sends_the_first_ones() {
    let (mut pipeline, mut memory) = (pipeline(), Memory::default());
    for tenant in ["a", "b"] {
        done(pipeline.take(lines(tenant), &mut memory));
        pipeline.batches.fall_due();
    }
    memory.dies = true;
    assert!(!survives(pipeline.send_batches(&mut memory)));
    assert_eq!(left_by_a_dead_committer(&mut pipeline, &mut memory), ["a line of a\n", "a line of b\n"]);
}

/// Whatever waits for the log goes there: the bodies of its messages.
fn logged(pipeline: &mut Pipeline, memory: &mut Memory) -> Vec<Bytes> {
    let mut bodies = Vec::new();
    while !pipeline.batches.is_empty() {
        pipeline.batches.fall_due();
        done(pipeline.send_batches(memory));
        for (number, message) in std::mem::take(&mut memory.open) {
            if let Message::Batch { body, .. } = message {
                bodies.push(body);
                done(pipeline.answered(number, PublishAnswer::Stored(1), memory));
            }
        }
    }
    bodies
}

#[test]
fn what_the_server_takes_no_more_after_its_restart_goes_in_parts_or_is_written_anew() {
    let (mut pipeline, mut memory) = (pipeline(), Memory::default());
    let (returns, _returned) = mpsc::unbounded_channel();
    let line = || Input::Line(Tenant::parse("a").unwrap(), Bytes::from_static(b"a line of a log"));
    for _ in 0..100 {
        done(pipeline.take(line(), &mut memory));
    }
    pipeline.batches.fall_due();
    done(pipeline.send_batches(&mut memory));
    for _ in 0..50 {
        done(pipeline.take(line(), &mut memory));
    }
    let make = AckToken::without_connection(returns);
    done(pipeline.take(Input::Commit(commit(1, make("1"))), &mut memory));
    assert_eq!(memory.open.len(), 2, "a batch and a record were sent");
    memory.open.clear();

    pipeline.fit(200, 150);
    done(pipeline.send_again(Duration::ZERO, &mut memory));

    assert!(memory.open.is_empty(), "{:?}", memory.open);
    assert_eq!(memory.unclear.borrow().len(), 1, "its record is written anew");
    let bodies = logged(&mut pipeline, &mut memory);
    assert!(bodies.iter().all(|body| body.len() <= 100 && body.ends_with(b"\n")), "{bodies:?}");
    let log: Vec<u8> = bodies.iter().flatten().copied().collect();
    assert_eq!(log, b"a line of a log\n".repeat(150));
}

#[test]
fn while_the_log_takes_nothing_what_handlers_say_has_a_bound_and_starts_are_kept() {
    const LONG: usize = 256 * 1024;
    let (mut pipeline, mut memory) = (Pipeline::new(1 << 20, Arc::default(), None), Memory::default());
    let (long, at) = (Bytes::from(vec![b'x'; LONG]), Timestamp::from_millis(1_000));
    for _ in 0..140 {
        done(pipeline.take(Input::Line(Tenant::default_tenant(), long.clone()), &mut memory));
    }
    let mut run = Box::new(Run::new(&crate::tests::job("t", "r"), 1, at));
    run.begin(1, &"n".into(), at);
    let author = Author { node: "n", server: &Here(Names::new("longshore")) };
    let start = EncodedEvents::of(&run, Published::nothing(), author).for_the_log();
    let lines_of_start = start.log().to_vec();
    let start = Input::Commit(Box::new(Commit::with_events(run, PublishedJob::default(), start)));
    assert!(start.is_for_the_log_alone());
    done(pipeline.take(start, &mut memory));

    let bodies = logged(&mut pipeline, &mut memory);

    let bytes: usize = bodies.iter().map(Bytes::len).sum();
    assert_eq!(bytes, 32 * 1024 * 1024 / LONG * (LONG + 1) + lines_of_start.len());
    assert!(!lines_of_start.is_empty() && bodies.last().unwrap().ends_with(&lines_of_start));
    done(pipeline.take(lines("a"), &mut memory));
    assert_eq!(logged(&mut pipeline, &mut memory), ["a line of a\n"]);
}
