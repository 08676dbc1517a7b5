//! Where a job goes: to which handler, in this node or remote, under which policy, and how many jobs that handler takes
//! at once. It calls no handler and asks none: `cluster/discovery.rs` asks remote ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::handlers::Announced;
use longshore_backbone::wire::subject::Names;
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::served::NeverServed;
use longshore_domain::{Job, JobType, Tenant};

use crate::handlers::capacity::{Capacity, HandlerCapacity};
use crate::handlers::discovery::{Discovery, KnownHandlers};
use crate::handlers::handler::{Handler, Handlers};
use crate::handlers::served_types::ServedTypes;
use crate::runtime::kind::{Kind, Room};
use crate::runtime::now;

pub(crate) struct Routing {
    pub(crate) policies: Arc<Policies>,
    handlers: Handlers,
    names: Names,
    pub(crate) capacity: Arc<HandlerCapacity>,
    pub(crate) discovery: Discovery,
    pub(crate) served: ServedTypes,
}

impl Routing {
    /// Nothing is known of remote handlers yet, and none of their capacity, `capacity`, is used.
    pub(crate) fn new(
        policies: Arc<Policies>,
        handlers: Handlers,
        names: Names,
        capacity: Arc<HandlerCapacity>,
    ) -> Self {
        Self { policies, handlers, names, capacity, discovery: Discovery::default(), served: ServedTypes::default() }
    }

    pub(crate) fn policy(&self, job: &Job) -> &TypePolicy {
        self.policies.of(&job.job_type)
    }

    /// How long one attempt of the job may take.
    pub(crate) fn time_limit(&self, job: &Job) -> Duration {
        self.policy(job).time_limit(job)
    }

    /// The handler inside this node that serves the job; `None`: a remote handler does.
    pub(crate) fn handler(&self, job: &Job) -> Option<&Arc<dyn Handler>> {
        self.handler_of(&job.job_type)
    }

    fn handler_of(&self, job_type: &JobType) -> Option<&Arc<dyn Handler>> {
        self.handlers.get(self.handler_name(job_type)?)
    }

    /// The name of the handler that a type would have in this node; `None`: it is left to remote ones.
    fn handler_name<'a>(&'a self, job_type: &'a JobType) -> Option<&'a str> {
        match self.policies.of(job_type).handler.as_deref() {
            Some("remote") => None,
            Some(name) => Some(name),
            None => Some(job_type.as_str()),
        }
    }

    /// The types that handlers inside this node serve.
    pub(crate) fn types_here(&self) -> impl Iterator<Item = JobType> {
        let named = self.handlers.names().filter_map(|name| JobType::parse(name).ok());
        named.chain(self.policies.types.keys().cloned()).filter(|job_type| self.handler_of(job_type).is_some())
    }

    /// The types whose handlers this node has and others may lack, with how many of their jobs each takes at once.
    pub(crate) fn own_handlers(&self) -> Vec<(JobType, Arc<dyn Handler>, u32)> {
        let named = self.handlers.names().filter_map(|name| JobType::parse(name).ok());
        let types: BTreeSet<JobType> = named.chain(self.policies.types.keys().cloned()).collect();
        let own = types.into_iter().filter_map(|job_type| {
            let name = self.handler_name(&job_type).filter(|name| self.handlers.is_own(name))?;
            let handler = Arc::clone(self.handlers.get(name)?);
            let slots = self.policies.of(&job_type).slots;
            Some((job_type, handler, slots))
        });
        own.collect()
    }

    /// No handler was there for this job: the next ones are asked before they get jobs.
    pub(crate) fn forget_handlers(&self, job: &Job) {
        let subject = self.names.work(&job.tenant, &job.job_type);
        self.discovery.missed(&subject, job);
        self.discovery.forget(&subject);
    }

    pub(crate) fn found_handlers(&self, job: &Job) {
        self.served.saw(&job.job_type);
        self.discovery.found(|| [self.names.work(&job.tenant, &job.job_type), self.names.work_of_all(&job.job_type)]);
    }

    /// These handlers are online. Of those that subscribe with wildcards it is not known which types they are for.
    pub(crate) fn saw(&self, announced: &[Announced]) {
        for handler in announced {
            let job_type = self.names.read_work(&handler.subject).and_then(|(_, of)| JobType::parse(of).ok());
            job_type.into_iter().for_each(|job_type| self.served.saw(&job_type));
        }
    }

    /// The type, if it is certain that no handler of it was ever online.
    pub(crate) fn never_served(&self, tenant: &Tenant, job_type: &JobType) -> Option<NeverServed> {
        if !self.served.was_never_served(job_type, now()) {
            return None;
        }
        let subject = self.names.work(tenant, job_type);
        Some(NeverServed {
            job_type: job_type.clone(),
            missing_since: self.discovery.missing_since(&subject).unwrap_or_else(now),
            nearest: self.served.nearest(job_type),
            subjects: [subject, self.names.work_of_all(job_type)],
        })
    }

    /// The subject on which the handlers of a type listen.
    pub(crate) fn subject_of(&self, tenant: &Tenant, job_type: &JobType) -> String {
        self.names.work(tenant, job_type)
    }

    /// How many jobs may be with the remote handlers of this job at once, of all types that these serve together: the
    /// sum of what the handlers announce, or the type's own number if they announce nothing; one, until they were
    /// asked.
    pub(crate) fn capacity_of(&self, job: &Job) -> Capacity {
        self.capacity_of_kind(&job.tenant, &job.job_type).0
    }

    /// The one place with the remote handlers of this job, if it is not known whether there are any.
    pub(crate) fn trial_of(&self, job: &Job) -> Option<Capacity> {
        let (capacity, is_known) = self.capacity_of_kind(&job.tenant, &job.job_type);
        (!is_known).then_some(capacity)
    }

    /// How many jobs of a kind could start at once, as far as its handlers go: `max` if they run in this node.
    pub(crate) fn free_places(&self, kind: &Kind, max: usize) -> Room {
        if self.handler_of(&kind.job_type).is_some() {
            return Room::For(max);
        }
        self.discovery.saw_remote();
        let (capacity, is_known) = self.capacity_of_kind(&kind.tenant, &kind.job_type);
        match self.capacity.free(&capacity) {
            0 if is_known => Room::HandlersFull,
            free if is_known => Room::For(free),
            0 => Room::NotYet,
            _ if self.discovery.keeps_parked(&capacity.subject) => Room::NotYet,
            _ => Room::Trial,
        }
    }

    /// The capacity, and whether the handlers are known.
    fn capacity_of_kind(&self, tenant: &Tenant, job_type: &JobType) -> (Capacity, bool) {
        let subject = self.names.work(tenant, job_type);
        let announced = match self.discovery.of(&subject) {
            KnownHandlers::Slots(announced) => announced,
            KnownHandlers::Unknown { missed_until: opens } => {
                let shared_by = vec![self.names.work_of_all(job_type)];
                return (Capacity { subject, shared_by, max: usize::from(opens.is_none()), opens }, false);
            }
        };
        let places = |slots: u32| usize::try_from(slots).unwrap_or(usize::MAX);
        let announced = if self.policies.of(job_type).announcements { announced } else { Vec::new() };
        let (shared_by, max) = match announced.iter().map(|(_, slots)| places(*slots)).sum() {
            0 => (vec![self.names.work_of_all(job_type)], places(self.policies.of(job_type).slots)),
            max => (announced.into_iter().map(|(subject, _)| subject).collect(), max),
        };
        (Capacity { subject, shared_by, max, opens: None }, true)
    }

    /// How often a remote handler of this job has to signal. What is announced holds only for a handler that `beats`:
    /// any service can announce it, but only the handler that has the job can send a heartbeat.
    pub(crate) fn heartbeat(&self, job: &Job, beats: bool) -> Option<Duration> {
        let announced = || self.discovery.heartbeat(&self.names.work(&job.tenant, &job.job_type));
        let policy = self.policy(job);
        policy.heartbeat.or_else(|| announced().filter(|_| beats && policy.announcements))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use longshore_backbone::handlers::Announced;
    use longshore_domain::JobOptions;

    use super::*;
    use crate::handlers::handler::{Context, HandlerError};

    async fn work(_: Context) -> Result<(), HandlerError> {
        Ok(())
    }

    fn job(job_type: &str, timeout: Option<Duration>) -> Job {
        Job {
            options: Some(Box::new(JobOptions { timeout, ..JobOptions::default() })),
            ..crate::tests::job(job_type, "r")
        }
    }

    /// The node has handlers for `mail` and, as every node, for `ping`; `call` is left to remote ones, `post` done by
    /// that of `mail`.
    fn routing(of_call: TypePolicy) -> Routing {
        let handled_by = |name: &str| TypePolicy { handler: Some(name.to_owned()), ..TypePolicy::default() };
        let call = TypePolicy { handler: Some("remote".to_owned()), ..of_call };
        let types = [("call", call), ("post", handled_by("mail")), ("gone", handled_by("unknown"))];
        let types = types.into_iter().map(|(name, policy)| (JobType::parse(name).unwrap(), policy)).collect();
        let handlers = Handlers::new().with("mail", work).with("call", work).with_everywhere("ping", work);
        let policies = Arc::new(Policies { types, ..Policies::default() });
        Routing::new(policies, handlers, Names::new("longshore"), Arc::default())
    }

    #[test]
    fn a_type_goes_to_the_handler_that_is_set_for_it_or_has_its_name_and_else_to_remote_ones() {
        let routing = routing(TypePolicy::default());
        let is_here = |job_type| routing.handler(&job(job_type, None)).is_some();
        assert!(is_here("mail") && is_here("ping") && is_here("post"));
        assert!(!is_here("call"), "set to be remote, though the node has a handler of that name");
        assert!(!is_here("other") && !is_here("gone"));
        let own: Vec<String> = routing.own_handlers().iter().map(|(of, ..)| of.to_string()).collect();
        assert_eq!(own, ["mail", "post"], "every node has the one of `ping`");
    }

    #[test]
    fn an_attempt_takes_as_long_as_its_job_asks_for_up_to_the_types_maximum() {
        let seconds = Duration::from_secs;
        let policy = TypePolicy { timeout: seconds(10), timeout_max: Some(seconds(60)), ..TypePolicy::default() };
        let routing = routing(policy);
        let limit = |asked| routing.time_limit(&job("call", asked));
        assert_eq!([limit(None), limit(Some(seconds(3))), limit(Some(seconds(90)))], [10, 3, 60].map(seconds));
    }

    /// Given handlers that are not known yet, when jobs come for them, then one goes there until they were asked, and
    /// none right after no handler was found; then as many as they announce together, or as the type says if they
    /// announce nothing.
    #[test]
    fn remote_handlers_get_as_many_jobs_as_they_announce_and_one_until_they_were_asked() {
        let routing = routing(TypePolicy { slots: 7, ..TypePolicy::default() });
        let call = job("call", None);
        let subject = routing.subject_of(&call.tenant, &call.job_type);
        let announces = |slots: &[Option<u32>]| {
            let each = slots.iter().map(|slots| {
                let (service, subject) = ("calls".to_owned(), subject.clone());
                Announced { service, subject, slots: *slots, heartbeat: Some(Duration::from_secs(5)), wrong: vec![] }
            });
            routing.discovery.replace(each.collect(), Instant::now());
            routing.capacity_of(&call).max
        };
        assert_eq!(routing.capacity_of(&call).max, 1);
        routing.forget_handlers(&call);
        assert_eq!(routing.capacity_of(&call).max, 0);
        assert_eq!(announces(&[Some(3), Some(4)]), 7);
        assert_eq!(announces(&[Some(3), None]), 3);
        assert_eq!(announces(&[None]), 7, "the type's own number");
        let heartbeats = [false, true].map(|beats| routing.heartbeat(&call, beats));
        assert_eq!(heartbeats, [None, Some(Duration::from_secs(5))], "of a handler that beats");
        let unmoved = self::routing(TypePolicy { slots: 7, announcements: false, ..TypePolicy::default() });
        let announced = Announced {
            service: "calls".to_owned(),
            subject: subject.clone(),
            slots: Some(1),
            heartbeat: Some(Duration::from_millis(100)),
            wrong: vec![],
        };
        unmoved.capacity_of(&call);
        unmoved.discovery.replace(vec![announced], Instant::now());
        assert_eq!((unmoved.capacity_of(&call).max, unmoved.heartbeat(&call, true)), (7, None));
        assert_eq!(
            routing.free_places(&Kind::of(&job("mail", None)), 64),
            Room::For(64),
            "those here take as many as there are workers"
        );
    }
}
