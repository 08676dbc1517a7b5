//! What the parts of a node are made of, and what each of them is given: to find out what a part may do, read
//! its function here. A part is started in `tree.rs`.

use std::sync::Arc;

use longshore_backbone::Backbone;
use longshore_backbone::handlers::Caller;
use longshore_backbone::wire::api::InForce;
use longshore_domain::policy::Policies;
use longshore_domain::{JobType, SmolStr};
use tokio::sync::{Mutex, Semaphore};

use crate::api::wait_permits::{PACED, WAITS, WaitPermits};
use crate::api::{Api, PAGES};
use crate::attempt::cancelled::CancelsPart;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::shed::Shed;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::audit::Audit;
use crate::cluster::node_name::NodeNamePart;
use crate::cluster::readiness::Readiness;
use crate::cluster::tree_answers::Tree;
use crate::cluster::waiting::WaitingJobs;
use crate::cluster::{
    Watcher, discovery::DiscoveryPart, event_files::EventFilesPart, offered_handlers::OfferedHandlersPart,
    presence::PresencePart, pressure_watch::PressureWatchPart, put_queues::PutQueuesPart,
    run_time_settings::RunTimeSettingsPart, served_types::ServedTypesPart, stream_watch::StreamWatchPart,
};
use crate::commit::committer::Committing;
use crate::commit::handle::Committer;
use crate::handlers::capacity::HandlerCapacity;
use crate::handlers::handler::Handlers;
use crate::handlers::offered_calls::OfferedCalls;
use crate::handlers::routing::Routing;
use crate::lease_keeper::{Book, LeaseKeeperMessage, LeaseKeeperPart};
use crate::limits::breaker::{Breakers, keeper::BreakerPart};
use crate::limits::concurrency::{Slots, errands::SlotKeeperPart};
use crate::limits::rate::{Limits, keeper::LimiterPart};
use crate::limits::settings::RunTimeSettings;
use crate::metrics::Metrics;
use crate::pull::Pullers;
use crate::pull::receiver::PullReceiverPart;
use crate::queue::gates::Gates;
use crate::queue::lane_guard::LaneGuardPart;
use crate::queue::serve::{QueueMaker, RootAddress};
use crate::queue::served::ServedQueues;
use crate::runtime::address::{Address, Waiting};
use crate::runtime::gate_news::GateNews;
use crate::runtime::health::Health;
use crate::runtime::identity::Identity;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::park_permits::ParkGate;
use crate::runtime::pressure::MachinePressure;
use crate::runtime::system_events::SystemEvents;
use crate::service::ServicePart;
use crate::settings::{DeclaredSchedules, EventFile, LogControl, PressureSettings, Settings};
use crate::streams::EventStreams;
use crate::streams::tail::Table;
use crate::time::{recurring::RecurringPart, timekeeper::TimekeeperPart};
use crate::trace::Tracer;
use crate::webhooks;

/// What the parts of a node are made of. Only the node sees this whole.
pub(crate) struct Parts {
    /// What endpoints do, and firings of recurring schedules: takes jobs, looks at runs, has decisions about them
    /// committed.
    pub(crate) api: Arc<Api>,
    pub(crate) gates: Gates,
    pub(crate) queues: Arc<ServedQueues>,
    /// Where the root of the tree is ordered to start and end queues.
    pub(crate) root: RootAddress,
    /// By which attempts have their commits carried out, however long that takes.
    committer: Committer,
    pub(crate) committing: Arc<Mutex<Committing>>,
    pub(crate) book: Arc<Book>,
    pub(crate) leases: Address<LeaseKeeperMessage>,
    pub(crate) offered_calls: Arc<OfferedCalls>,
    pullers: Arc<Pullers>,
    health: Arc<Health>,
    /// How the node watches for want of processor and memory, if it does.
    watches: Option<PressureSettings>,
    pressure: Arc<MachinePressure>,
    shed: Arc<Shed>,
    log: Option<Arc<dyn LogControl>>,
    in_force: Arc<[InForce]>,
    /// Where the event log is written to as well.
    event_file: Option<Arc<dyn EventFile>>,
    /// Who follows events on this node.
    event_streams: Arc<Table>,
    waits: Arc<WaitPermits>,
    /// The recurring schedules that the configuration declares.
    declared: Arc<DeclaredSchedules>,
}

/// The gates of a node that has these handlers and goes by these policies.
fn gates(backbone: &Backbone, identity: &Identity, policies: &Arc<Policies>, handlers: Handlers) -> Gates {
    let news = Arc::<GateNews>::default();
    let capacity = Arc::new(HandlerCapacity::new(Arc::clone(&news)));
    Gates {
        routing: Arc::new(Routing::new(Arc::clone(policies), handlers, backbone.names().clone(), capacity)),
        limits: Arc::new(Limits::new(&identity.instance, Arc::clone(policies), Arc::clone(&news))),
        breakers: Arc::new(Breakers::new(Arc::clone(policies), &identity.writer, Arc::clone(&news))),
        run_time_settings: Arc::new(RunTimeSettings::new(Arc::clone(&news))),
        slots: Arc::new(Slots::new(Arc::clone(policies), Arc::clone(&news), backbone.concurrency_space())),
        park: ParkGate::new(backbone.parked_space(), Arc::clone(&news)),
        news,
    }
}

impl Parts {
    pub(crate) fn new(backbone: Backbone, settings: Settings, handlers: Handlers) -> Self {
        let Settings { name, policies, schedules, pressure: watches, traces, audit_file, .. } = settings;
        let Settings { log, in_force, event_file, webhooks, .. } = settings;
        let name = SmolStr::from(name);
        let known = policies.types.keys().map(JobType::as_str).chain(handlers.names());
        let metrics = Arc::new(Metrics::new(known.map(SmolStr::from)));
        let (policies, identity) = (Arc::new(policies), Arc::new(Identity::new(name.clone())));
        let audit = Arc::new(Audit::new(backbone.clone(), name.to_string(), Arc::clone(&metrics), audit_file));
        let tracer = traces.map(|exporter| Arc::new(Tracer::new(exporter, Arc::clone(&metrics))));
        let (committer, committing) = Committer::open(backbone.clone(), name, Arc::clone(&metrics), tracer.clone());
        let system_events = SystemEvents::new(backbone.clone(), Arc::clone(&identity));
        let handlers = webhooks::serve(handlers, webhooks.as_ref(), &backbone, &system_events, &metrics);
        let (gates, queues) = (gates(&backbone, &identity, &policies, handlers), Arc::<ServedQueues>::default());
        let (node, bounds) = (identity.node.clone(), Arc::clone(&policies));
        let waiting = WaitingJobs::new(backbone.clone(), node, bounds, Arc::clone(&queues));
        let api = Api {
            backbone,
            identity,
            lifecycle: Lifecycle::default(),
            policies,
            committer: committer.for_requests(),
            recently_cancelled: Arc::default(),
            unstored_ends: Arc::default(),
            limits: Arc::clone(&gates.limits),
            slots: Arc::clone(&gates.slots),
            waiting: Arc::new(waiting),
            routing: Arc::clone(&gates.routing),
            run_time_settings: Arc::clone(&gates.run_time_settings),
            put_queues: Arc::default(),
            system_events,
            metrics,
            breakers: Arc::clone(&gates.breakers),
            circuit_breaker: Address::default(),
            audit,
            paced: WaitPermits::of(&PACED),
            pages: Arc::new(Semaphore::new(PAGES)),
            webhooks,
            tracer,
        };
        Self {
            api: Arc::new(api),
            gates,
            queues,
            root: RootAddress::default(),
            committer,
            committing,
            book: Arc::default(),
            leases: Address::default(),
            offered_calls: Arc::default(),
            pullers: Arc::default(),
            health: Arc::default(),
            watches,
            pressure: Arc::default(),
            shed: Arc::default(),
            log,
            in_force,
            event_file,
            event_streams: Arc::default(),
            waits: WaitPermits::of(&WAITS),
            declared: Arc::new(schedules),
        }
    }

    /// What attempts ask of this node.
    pub(crate) fn ports(&self, caller: Caller) -> NodePorts {
        NodePorts {
            backbone: self.api.backbone.clone(),
            identity: Arc::clone(&self.api.identity),
            lifecycle: self.api.lifecycle.clone(),
            routing: Arc::clone(&self.gates.routing),
            limits: Arc::clone(&self.gates.limits),
            run_time_settings: Arc::clone(&self.gates.run_time_settings),
            shed: Arc::clone(&self.shed),
            caller,
            committer: self.committer.clone(),
            book: Arc::clone(&self.book),
            metrics: Arc::clone(&self.api.metrics),
            recently_cancelled: Arc::clone(&self.api.recently_cancelled),
            unstored_ends: Arc::clone(&self.api.unstored_ends),
            tracer: self.api.tracer.clone(),
            unclear_claims: UnclearClaims::default(),
            local_retries: Arc::default(),
        }
    }

    /// The lease-keeper: renews leases, and stops jobs.
    pub(crate) fn lease_keeper(&self) -> LeaseKeeperPart {
        let (book, metrics) = (Arc::clone(&self.book), Arc::clone(&self.api.metrics));
        LeaseKeeperPart { backbone: self.api.backbone.clone(), book, metrics }
    }

    /// The lane-guard: removes unreadable messages, and makes deleted consumers again.
    pub(crate) fn lane_guard(&self, ports: &Arc<NodePorts>) -> LaneGuardPart {
        LaneGuardPart { ports: Arc::clone(ports), served: Arc::clone(&self.queues) }
    }

    /// Cancellations: stops cancelled runs, and says which jobs the node holds.
    pub(crate) fn cancels(&self, ports: &Arc<NodePorts>) -> CancelsPart {
        CancelsPart { ports: Arc::clone(ports), leases: self.leases.clone() }
    }

    /// The timekeeper: moves due jobs, has recurring schedules fire, and says which lanes are full.
    pub(crate) fn timekeeper(&self) -> TimekeeperPart {
        TimekeeperPart { api: Arc::clone(&self.api), health: Arc::clone(&self.health) }
    }

    /// The API's service: answers, has decisions about runs committed, and says how the node is.
    pub(crate) fn service(&self) -> ServicePart {
        ServicePart {
            api: Arc::clone(&self.api),
            readiness: self.readiness(),
            pullers: Arc::clone(&self.pullers),
            waits: Arc::clone(&self.waits),
        }
    }

    /// What the node's readiness rests on: the API, probes and the node's name show it.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness {
            backbone: self.api.backbone.clone(),
            identity: Arc::clone(&self.api.identity),
            queues: Arc::clone(&self.queues),
            lifecycle: self.api.lifecycle.clone(),
            routing: Arc::clone(&self.gates.routing),
            run_time_settings: Arc::clone(&self.gates.run_time_settings),
            health: Arc::clone(&self.health),
            pressure: Arc::clone(&self.pressure),
            shed: Arc::clone(&self.shed),
            metrics: Arc::clone(&self.api.metrics),
            tree: Tree::new(self.root.clone()),
            mailboxes: self.mailboxes().into(),
        }
    }

    /// The node's name: keeps it from others, and answers what they ask about this node, or want of its log.
    pub(crate) fn node_name(&self) -> NodeNamePart {
        let (log, in_force) = (self.log.clone(), Arc::clone(&self.in_force));
        NodeNamePart { readiness: self.readiness(), log, in_force }
    }

    /// The receiver of jobs for clients that pull work.
    pub(crate) fn pull_receiver(&self) -> PullReceiverPart {
        PullReceiverPart { api: Arc::clone(&self.api), pullers: Arc::clone(&self.pullers) }
    }

    /// The watch of the streams that this node needs.
    pub(crate) fn stream_watch(&self) -> StreamWatchPart {
        let (audit, queues) = (Arc::clone(&self.api.audit), Arc::clone(&self.queues));
        StreamWatchPart { watcher: self.watcher(), audit, queues }
    }

    /// The run-time settings: reads them, removes those whose time is over, and says so.
    pub(crate) fn run_time_settings(&self) -> RunTimeSettingsPart {
        RunTimeSettingsPart {
            store: self.api.backbone.run_time_settings(),
            nodes: self.api.backbone.nodes(),
            identity: Arc::clone(&self.api.identity),
            settings: Arc::clone(&self.gates.run_time_settings),
            put_queues: Arc::clone(&self.api.put_queues),
            limits: Arc::clone(&self.gates.limits),
            queues: Arc::clone(&self.queues),
            system_events: self.api.system_events.clone(),
        }
    }

    /// The memory of served types: reads and stores it.
    pub(crate) fn served_types(&self) -> ServedTypesPart {
        ServedTypesPart { store: self.api.backbone.served_types(), routing: Arc::clone(&self.gates.routing) }
    }

    /// The rate limiter: gets tokens from the cluster, and announces holds.
    pub(crate) fn limiter(&self) -> LimiterPart {
        LimiterPart { backbone: self.api.backbone.clone(), limits: Arc::clone(&self.gates.limits) }
    }

    /// The slot-keeper: gets slots of concurrency limits from the cluster, and keeps the node's session.
    pub(crate) fn slot_keeper(&self) -> SlotKeeperPart {
        SlotKeeperPart {
            records: self.api.backbone.slots(),
            node: self.api.identity.node.clone(),
            lease: self.api.backbone.storage().lease,
            slots: Arc::clone(&self.gates.slots),
            metrics: Arc::clone(&self.api.metrics),
        }
    }

    /// Presence: says that the node is there, and how full the records are.
    pub(crate) fn presence(&self) -> PresencePart {
        PresencePart { node: self.readiness(), waiting: Arc::clone(&self.api.waiting) }
    }

    /// The watches of dead letters, of queues that no node serves, and of the clock, which it sets: each warns.
    pub(crate) fn watcher(&self) -> Watcher {
        Watcher {
            backbone: self.api.backbone.clone(),
            identity: Arc::clone(&self.api.identity),
            health: Arc::clone(&self.health),
            metrics: Arc::clone(&self.api.metrics),
            system_events: self.api.system_events.clone(),
        }
    }

    /// The event files, if there are any: reads the event log.
    pub(crate) fn event_files(&self) -> Option<EventFilesPart> {
        let file = self.event_file.clone()?;
        Some(EventFilesPart { backbone: self.api.backbone.clone(), metrics: Arc::clone(&self.api.metrics), file })
    }

    /// Streams of events, opened by clients over HTTP, and the reader of the event log's end for all of them.
    pub(crate) fn streams(&self) -> EventStreams {
        EventStreams { api: Arc::clone(&self.api), table: Arc::clone(&self.event_streams) }
    }

    /// The watch of processor and memory, if it is set: says by how far schedulers hold back.
    pub(crate) fn pressure_watch(&self) -> Option<PressureWatchPart> {
        Some(PressureWatchPart {
            settings: self.watches.clone()?,
            pressure: Arc::clone(&self.pressure),
            metrics: Arc::clone(&self.api.metrics),
            system_events: self.api.system_events.clone(),
        })
    }

    /// The recurring schedules: stores what is declared, and sets ticks.
    pub(crate) fn recurring(&self) -> RecurringPart {
        let (api, declared) = (Arc::clone(&self.api), Arc::clone(&self.declared));
        let pending = Arc::new(Mutex::new(declared.schedules.clone()));
        RecurringPart { api, declared, pending }
    }

    /// Handler discovery: asks remote handlers, and notifies the schedulers.
    pub(crate) fn discovery(&self) -> DiscoveryPart {
        DiscoveryPart {
            backbone: self.api.backbone.clone(),
            routing: Arc::clone(&self.gates.routing),
            queues: Arc::clone(&self.queues),
        }
    }

    /// The offered handlers: run for other nodes.
    pub(crate) fn offered_handlers(&self) -> OfferedHandlersPart {
        OfferedHandlersPart {
            backbone: self.api.backbone.clone(),
            routing: Arc::clone(&self.gates.routing),
            draining: self.api.lifecycle.draining.clone(),
            calls: Arc::clone(&self.offered_calls),
            started_at: self.api.identity.started_at,
        }
    }

    /// The circuit breakers: writes and reads their records, and says how they change.
    pub(crate) fn circuit_breaker(&self) -> BreakerPart {
        BreakerPart {
            records: self.api.backbone.breakers(),
            breakers: Arc::clone(&self.gates.breakers),
            lease: self.api.backbone.storage().lease,
            system_events: self.api.system_events.clone(),
            metrics: Arc::clone(&self.api.metrics),
        }
    }

    /// Makes what serves a queue: its supervisor, whose workers perform attempts, parking, which moves parked jobs, and
    /// fairness, which moves waiting jobs forward as a worker would park them.
    pub(crate) fn queue_maker(&self, ports: &Arc<NodePorts>) -> QueueMaker {
        QueueMaker {
            ports: Arc::clone(ports),
            gates: self.gates.clone(),
            health: Arc::clone(&self.health),
            pressure: Arc::clone(&self.pressure),
            served: Arc::clone(&self.queues),
        }
    }

    /// The queues that were put while the cluster runs: starts and ends what serves them.
    pub(crate) fn put_queues(&self, ports: &Arc<NodePorts>) -> PutQueuesPart {
        let (put, root) = (Arc::clone(&self.api.put_queues), self.root.clone());
        PutQueuesPart { put, maker: self.queue_maker(ports), root }
    }

    /// The parts that have messages, and how many wait for each; the schedulers, which come and go, are not among them.
    fn mailboxes(&self) -> Vec<Waiting> {
        let mut all = vec![
            self.api.committer.address.counted("committer"),
            self.leases.counted("lease-keeper"),
            self.gates.limits.address.counted("rate-limiter"),
            self.gates.slots.address.counted("slot-keeper"),
            self.api.circuit_breaker.counted("circuit-breaker"),
        ];
        all.extend(self.api.tracer.iter().map(|tracer| tracer.address.counted("trace-exporter")));
        all
    }
}
