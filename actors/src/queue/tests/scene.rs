//! A queue of a node, and jobs that arrive in it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Headers;
use longshore_backbone::bucket_space::BucketSpace;
use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::handlers::Announced;
use longshore_backbone::parked::ParkedSpace;
use longshore_backbone::run_time_settings::SettingChange;
use longshore_backbone::wire::header;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_backbone::wire::subject::Names;
use longshore_domain::policy::{Policies, QueuePolicy};
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::setting::{Pause, PauseOf, Setting, SettingKey};
use longshore_domain::{JobOptions, JobType, Lane, Priority, Queue, QueueLane, Run, Tenant, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::attempt::assignment::{Assignment, Start};
use crate::handlers::handler::{Context, HandlerError, Handlers};
use crate::handlers::routing::Routing;
use crate::limits::breaker::Breakers;
use crate::limits::concurrency::Slots;
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::queue::buffer::{Arrived, JobBuffer};
use crate::queue::dispatcher::Dispatcher;
use crate::queue::gates::Gates;
use crate::queue::wake_permits::WakePermits;
use crate::runtime::gate_news::GateNews;
use crate::runtime::kind::Kind;
use crate::runtime::park_permits::ParkGate;
use crate::runtime::pressure::MachinePressure;

pub(super) const LEASE: Duration = Duration::from_secs(30);
/// Each test's beginning of time, in milliseconds.
const BEGINNING: i64 = 1_000_000;

/// A queue whose type `here` has a handler in the node; all other types are left to remote handlers.
pub(super) struct Scene {
    pub(super) queue: Arc<Dispatcher>,
    pub(super) closing: CancellationToken,
    pub(super) pressure: Arc<MachinePressure>,
    /// Whether the stream of parked jobs is full.
    pub(super) space: ParkedSpace,
    /// When the first jobs arrive.
    pub(super) start: Instant,
    names: Names,
    token: Box<dyn Fn(&str) -> AckToken>,
    returned: RefCell<Box<dyn FnMut() -> Option<String>>>,
    revision: Cell<u64>,
}

/// A job that arrives.
#[derive(Clone)]
pub(super) struct Incoming {
    pub(super) job_type: &'static str,
    pub(super) priority: u64,
    /// Its number in its lane, by which the tests know it.
    pub(super) number: u64,
    /// When it was published, in milliseconds after the beginning.
    pub(super) at: i64,
    /// How many more wait behind it in its lane.
    pub(super) behind: u64,
    /// For how long its lease has lasted when the test begins.
    pub(super) held: Duration,
    pub(super) options: Option<JobOptions>,
    pub(super) is_returned: bool,
}

/// A job of this type and priority, published so many milliseconds after the beginning as its number says.
pub(super) fn job(job_type: &'static str, priority: u64, number: u64) -> Incoming {
    let at = i64::try_from(number).unwrap();
    Incoming { job_type, priority, number, at, behind: 0, held: Duration::ZERO, options: None, is_returned: false }
}

/// A job of this type that was parked and taken back.
pub(super) fn returned(job_type: &'static str, number: u64) -> Incoming {
    Incoming { is_returned: true, ..job(job_type, 5, number) }
}

pub(super) fn kind(job_type: &str) -> Kind {
    let job_type = JobType::parse(job_type).unwrap();
    Kind { tenant: Tenant::default_tenant(), job_type, key: KindKey::default() }
}

/// The number of a job in its lane.
pub(super) fn number(assignment: &Assignment) -> u64 {
    assignment.arrival.holding.message.sequence
}

impl Scene {
    /// A queue of a node that knows that nothing is paused, and has seen the head of every lane.
    pub(super) fn new(policy: QueuePolicy) -> Self {
        Self::with(policy, Policies::default())
    }

    pub(super) fn with(policy: QueuePolicy, policies: Policies) -> Self {
        let start = Instant::now();
        let (policies, news) = (Arc::new(policies), Arc::<GateNews>::default());
        let names = Names::new("longshore");
        let handlers = Handlers::new().with("here", |_: Context| async { Ok::<(), HandlerError>(()) });
        let capacity = Arc::new(crate::handlers::capacity::HandlerCapacity::new(Arc::clone(&news)));
        let limits = Arc::new(Limits::new("n1", Arc::clone(&policies), Arc::clone(&news)));
        let run_time_settings = Arc::new(RunTimeSettings::new(Arc::clone(&news)));
        run_time_settings.is_present(start);
        run_time_settings.were_read(start);
        let breakers = Arc::new(Breakers::new(Arc::clone(&policies), "n1", Arc::clone(&news)));
        let slots = Arc::new(Slots::new(Arc::clone(&policies), Arc::clone(&news), BucketSpace::default()));
        let routing = Arc::new(Routing::new(policies, handlers, names.clone(), capacity));
        let (space, closing, pressure) = (ParkedSpace::default(), CancellationToken::new(), Arc::default());
        let park = ParkGate::new(space.clone(), Arc::clone(&news));
        let gates = Gates { routing, limits, breakers, run_time_settings, slots, park, news };
        let buffer = JobBuffer::new(Queue::main(), policy, LEASE, gates, closing.clone());
        // The first pulls had time to come back.
        buffer.lanes_asked(start.checked_sub(Duration::from_secs(1)).unwrap());
        let queue = Dispatcher::new(Queue::main(), policy, buffer, WakePermits::of_runtime(), Arc::clone(&pressure));
        let queue = Arc::new(queue);
        let (returns, mut returned) = mpsc::unbounded_channel();
        let token = AckToken::without_connection(returns);
        let returned = move || returned.try_recv().ok().map(|reply| reply.to_string());
        let (token, returned) = (Box::new(token), RefCell::new(Box::new(returned) as _));
        Self { queue, closing, pressure, space, start, names, token, returned, revision: Cell::new(0) }
    }

    pub(super) fn buffer(&self) -> &JobBuffer {
        &self.queue.buffer
    }

    /// The remote handlers of a type take so many jobs at once.
    pub(super) fn announces(&self, job_type: &str, slots: u32) {
        let routing = &self.buffer().gates.routing;
        let subject = routing.subject_of(&Tenant::default_tenant(), &JobType::parse(job_type).unwrap());
        let of_type =
            Announced { service: "handler".to_owned(), subject, slots: Some(slots), heartbeat: None, wrong: vec![] };
        routing.discovery.replace(vec![of_type], Instant::now());
        routing.capacity.changed();
    }

    /// An operator pauses this, or ends its pause.
    pub(super) fn pauses(&self, of: PauseOf, is_paused: bool) {
        self.revision.set(self.revision.get() + 1);
        let at = Timestamp::from_millis(0);
        let setting = is_paused.then_some(Setting::Pause(Pause { since: at, until: None }));
        let change = SettingChange { key: Some(SettingKey::Pause(of)), setting, revision: self.revision.get(), at };
        self.buffer().gates.run_time_settings.take_in(vec![change], false);
    }

    /// A job as the scheduler reads its delivery.
    pub(super) fn read(&self, incoming: &Incoming) -> Box<Assignment> {
        let Incoming { job_type, priority, number, at, behind, held, options, is_returned } = incoming;
        let (tenant, queue) = (Tenant::default_tenant(), Queue::main());
        let (priority, job_type) = (Priority::new(*priority).unwrap(), JobType::parse(job_type).unwrap());
        let mut headers = options.as_ref().map(|options| {
            let mut headers = Headers::new();
            header::write_options(options, &mut headers);
            headers
        });
        let here = Lane::new(&queue, priority);
        let original = self.names.job(&tenant, &here, &job_type);
        let (subject, lane) = match is_returned {
            true => (self.names.returned(&tenant, &here, &job_type), QueueLane::Returned),
            false => (original, QueueLane::Of(priority)),
        };
        let at = Timestamp::from_millis(BEGINNING + at);
        let message = MessageId { stream: self.names.lane_stream(&queue, lane).into(), sequence: *number, at };
        if *is_returned {
            // What a node wrote when it parked the job.
            let job = longshore_domain::Job {
                tenant,
                queue,
                priority,
                job_type,
                run_id: longshore_domain::RunId::parse(&format!("main-p5-{number}")).unwrap(),
                options: None,
            };
            let run = Run { seal: "5ea1".into(), ..Run::new(&job, 3, at) };
            headers = Some(header::carry_on(headers.as_ref(), &run, 1, Some(at)));
        }
        let delivery = Delivery {
            subject: subject.into(),
            headers,
            payload: b"{}"[..].into(),
            size: 2,
            holding: Holding { message, delivery: 1 },
            behind: *behind,
            on_its_way: None,
            leased_from: self.start.checked_sub(*held).unwrap(),
            ack_token: (self.token)(&number.to_string()),
        };
        Box::new(Assignment::read(delivery, &self.names, 0, usize::MAX))
    }

    /// Jobs arrive together.
    pub(super) fn arrive(&self, jobs: impl IntoIterator<Item = Incoming>) {
        self.buffer().came(jobs.into_iter().map(|incoming| {
            let assignment = self.read(&incoming);
            assert!(!matches!(assignment.start, Start::Invalid(_)), "{:?}", assignment.start);
            let lane = if incoming.is_returned { QueueLane::Returned } else { QueueLane::Of(assignment.job.priority) };
            Arrived { lane: lane.index(), behind: incoming.behind, assignment }
        }));
    }

    /// A short retry of this job is due that the node holds by itself.
    pub(super) fn comes_again(&self, incoming: &Incoming) {
        let mut assignment = self.read(incoming);
        assignment.start = Start::HeldLocally(Box::new(Run::new(&assignment.job, 3, assignment.since)), 1);
        self.buffer().again(assignment);
    }

    /// The jobs that leave the buffer one after the other, by number: `s` for one that starts, `p` for one that is
    /// parked. Their handlers are done at once, and what is parked has arrived there.
    pub(super) fn leave(&self) -> Vec<String> {
        let all = std::iter::from_fn(|| self.buffer().next(Instant::now()));
        all.map(|assignment| self.settles(*assignment)).collect()
    }

    /// A job that has left the buffer is done, and says how it left.
    pub(super) fn settles(&self, assignment: Assignment) -> String {
        let how = if assignment.park.is_some() { 'p' } else { 's' };
        let text = format!("{how}{}", number(&assignment));
        assignment.ack_token.abandon();
        text
    }

    /// The jobs that the server was given back since the last call, by number, in order.
    pub(super) fn given_back(&self) -> Vec<String> {
        let mut next = self.returned.borrow_mut();
        std::iter::from_fn(&mut **next).collect()
    }

    /// How many jobs stand in the lanes' part of the buffer, and how many wait because they cannot start.
    pub(super) fn held(&self) -> (usize, usize) {
        let held = self.buffer().held();
        (held.of.iter().sum(), held.back)
    }
}
