//! A due job goes into its lane before its message is gone, and by one id however often it is moved.

use std::cell::RefCell;

use futures_util::FutureExt as _;
use longshore_backbone::wire::header::names;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Job, Run};

use super::*;

fn main() -> Lane {
    Lane::new(&Queue::main(), Priority::DEFAULT)
}

fn tenant() -> Tenant {
    Tenant::parse("acme").unwrap()
}

/// A run whose second attempt is due at 60,000 ms.
fn retrying() -> Run {
    let job = Job { tenant: tenant(), ..crate::tests::job("mail.send", "main-p5-7") };
    let mut run = Run { seal: "5ea1".into(), ..Run::new(&job, 3, Timestamp::from_millis(0)) };
    run.begin(1, &"n1".into(), Timestamp::from_millis(1));
    let failure = Failure::new(ErrorKind::Retryable, "no");
    run.settle(Settlement::Retry { at: due_at(), failure }, Timestamp::from_millis(2));
    run
}

fn due_at() -> Timestamp {
    Timestamp::from_millis(60_000)
}

/// What the job carries that its schedule was written with.
fn carried(run: &Run) -> Headers {
    let mut own = Headers::new();
    own.insert("X-Own", "1");
    header::carry_on(Some(&own), run, run.next_attempt(), Some(due_at()))
}

fn read(subject: &str, headers: Option<&Headers>, sequence: u64) -> Option<DueJob> {
    DueJob::read(&Names::new("longshore"), subject, headers, Bytes::from_static(b"{}"), sequence)
}

/// The subject of the job in its lane.
fn job_subject() -> String {
    Names::new("longshore").job(&tenant(), &main(), &JobType::parse("mail.send").unwrap())
}

fn due(headers: &Headers, sequence: u64) -> DueJob {
    read(&job_subject(), Some(headers), sequence).unwrap()
}

#[test]
fn a_due_job_is_published_into_its_lane_as_it_was_scheduled() {
    let mut headers = carried(&retrying());
    // The server adds such headers when a schedule fires.
    headers.insert("Nats-Scheduler", "x");
    let job = due(&headers, 9);
    assert_eq!((job.subject, &job.payload[..]), (job_subject(), &b"{}"[..]));
    assert_eq!((job.lane, job.due_at), (main(), Some(due_at())));
    assert_eq!(header::value_of(&job.headers, "X-Own"), Some("1"));
    assert_eq!(header::value_of(&job.headers, names::RUN_ID), Some("main-p5-7"));
    assert!(!header::has(&job.headers, "Nats-Scheduler"), "the lane's server would read it");
}

#[test]
fn a_parked_job_goes_into_the_lane_of_returned_jobs() {
    let parked = "longshore.parked.acme.main.p5.k0.mail.send";
    let names = Names::new("longshore");
    let job = read(parked, Some(&carried(&retrying())), 9).unwrap();
    let job_type = JobType::parse("mail.send").unwrap();
    assert_eq!(job.subject, names.returned(&tenant(), &main(), &job_type));
}

#[test]
fn the_same_message_has_one_id_and_each_wait_of_a_run_another() {
    let run = retrying();
    let id = |run: &Run, sequence| due(&carried(run), sequence).id;
    assert_eq!(id(&run, 9), "acme/main-p5-7/5ea1/1/2/0/9");
    assert_eq!(id(&run, 9), id(&run, 9), "two nodes that move it publish it once");
    let others = [
        id(&run, 10),
        id(&Run { deferrals: 1, ..run.clone() }, 9),
        id(&Run { attempt: 2, ..run.clone() }, 9),
        id(&Run { round: 2, ..run.clone() }, 9),
        // A later run of that id.
        id(&Run { seal: "5ea2".into(), ..run.clone() }, 9),
        id(&Run { tenant: Tenant::parse("other").unwrap(), ..run.clone() }, 10),
    ];
    assert!(others.iter().all(|other| *other != id(&run, 9)), "{others:?}");
}

#[test]
fn a_job_whose_headers_cannot_be_read_is_moved_by_its_sequence_and_judged_in_its_lane() {
    let mut headers = carried(&retrying());
    headers.insert("Longshore-Cost", "none");
    let job = due(&headers, 9);
    assert_eq!((job.id.as_str(), job.due_at), ("acme/due/9", None));
    assert_eq!(header::value_of(&job.headers, "Longshore-Cost"), Some("none"));
    assert_eq!(read(&job_subject(), None, 9).unwrap().id, "acme///0/0/0/9");
}

#[test]
fn a_message_under_a_subject_that_is_no_jobs_is_not_moved() {
    for subject in [
        "",
        "longshore.jobs",
        "other.jobs.acme.main.p5.t",
        "longshore.jobs.a b.main.p5.t",
        "longshore.jobs.acme.main.p0.t",
    ] {
        assert!(read(subject, None, 9).is_none(), "{subject}");
    }
}

/// A lane and a message, and what was done to them in order.
#[derive(Default)]
struct Scripted {
    refuses: bool,
    /// Whether the message is still there.
    is_there: bool,
    done: RefCell<Vec<String>>,
}

impl Scripted {
    fn note(&self, what: impl Into<String>) {
        self.done.borrow_mut().push(what.into());
    }

    fn published(&self) -> Result<(), Error> {
        self.note("publish");
        let refusal = || Error::Publish { subject: "x".to_owned(), source: "full".into() };
        if self.refuses { Err(refusal()) } else { Ok(()) }
    }
}

impl DuePorts for Scripted {
    type Refusal = Error;

    async fn move_to_lane(&self, _: &DueJob) -> Result<(), Error> {
        self.published()
    }

    fn moved(&self, _: &DueJob) {
        self.note("count");
    }

    async fn ack(&self, ack_token: AckToken) {
        ack_token.abandon();
        self.note("ack");
    }
}

impl StoredPorts for Scripted {
    async fn publish(&self, _: &DueJob) -> Result<(), Error> {
        self.published()
    }

    fn published(&self, _: &DueJob) {
        self.note("count");
    }

    async fn take_out(&self, _: &Source, sequence: u64) -> Result<bool, Error> {
        self.note(format!("take out {sequence}"));
        Ok(self.is_there)
    }
}

#[test]
fn a_fired_message_is_acknowledged_once_its_job_is_in_the_lane_and_not_before() {
    let job = due(&carried(&retrying()), 9);
    let takes = Scripted::default();
    let moved = move_to_lane(&takes, &job, AckToken::none()).now_or_never().unwrap();
    assert!(moved.is_ok());
    assert_eq!(*takes.done.borrow(), ["publish", "count", "ack"]);

    let full = Scripted { refuses: true, ..Scripted::default() };
    let moved = move_to_lane(&full, &job, AckToken::none()).now_or_never().unwrap();
    assert!(moved.is_err(), "its token goes back, so that it comes again");
    assert_eq!(*full.done.borrow(), ["publish"]);
}

#[test]
fn of_nodes_that_move_a_stored_job_at_once_one_hears_that_it_did() {
    let job = due(&carried(&retrying()), 9);
    for is_there in [true, false] {
        let ports = Scripted { is_there, ..Scripted::default() };
        let moved = take_to_lane(&ports, &job, &Source::Schedules, 9).now_or_never().unwrap();
        assert_eq!(moved.unwrap(), is_there);
        assert_eq!(*ports.done.borrow(), ["publish", "count", "take out 9"]);
    }
    let full = Scripted { refuses: true, is_there: true, ..Scripted::default() };
    assert!(take_to_lane(&full, &job, &Source::Schedules, 9).now_or_never().unwrap().is_err());
    assert_eq!(*full.done.borrow(), ["publish"], "its message stays");
}
