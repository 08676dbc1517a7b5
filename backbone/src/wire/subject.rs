//! Every subject, stream and bucket of the contract. No other module builds one.

use std::sync::Arc;

use longshore_domain::events::EventKind;
use longshore_domain::{JobType, Lane, Priority, Queue, Run, RunId, Tenant};

use crate::wire::kind_key::KindKey;

mod copied;
mod tick;
mod work;

/// Suffix of the stream of a queue's returned jobs.
const RETURNED: &str = "_RETURNED";

/// The names of one namespace.
#[derive(Debug, Clone)]
pub struct Names {
    namespace: Arc<str>,
    prefix: Arc<str>,
}

/// A job's subject, split into tokens; each token is parsed by itself, so that an error can name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobSubject<'a> {
    /// Third token.
    pub tenant: &'a str,
    /// Fourth token.
    pub queue: &'a str,
    /// Fifth token.
    pub priority: &'a str,
    /// The rest.
    pub job_type: &'a str,
}

impl Names {
    /// The names under `namespace`, which is one token.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: Arc::from(namespace), prefix: Arc::from(namespace.to_uppercase()) }
    }

    /// The namespace itself: first token of every subject.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    // Streams and buckets.

    /// The stream of a queue's lane.
    #[must_use]
    pub fn lane_stream(&self, queue: &Queue, lane: impl Into<Lane>) -> String {
        match lane.into() {
            Lane::Of(priority) => format!("{}_JOBS_{queue}_P{}", self.prefix, priority.number()),
            Lane::Returned => format!("{}_JOBS_{queue}{RETURNED}", self.prefix),
        }
    }

    /// Prefix of every lane's stream name.
    #[must_use]
    pub fn lane_prefix(&self) -> String {
        format!("{}_JOBS_", self.prefix)
    }

    /// Queue and lane of a lane's stream.
    #[must_use]
    pub fn read_lane_stream(&self, stream: &str) -> Option<(Queue, Lane)> {
        let name = stream.strip_prefix(&self.lane_prefix())?;
        if let Some(queue) = name.strip_suffix(RETURNED) {
            return Some((Queue::parse(queue).ok()?, Lane::Returned));
        }
        let (queue, number) = name.rsplit_once("_P")?;
        Some((Queue::parse(queue).ok()?, Priority::new(number.parse().ok()?).ok()?.into()))
    }

    /// The stream of parked jobs.
    #[must_use]
    pub fn parked_stream(&self) -> String {
        format!("{}_PARKED", self.prefix)
    }

    /// The stream of schedules, retries and due jobs.
    #[must_use]
    pub fn schedules_stream(&self) -> String {
        format!("{}_SCHEDULES", self.prefix)
    }

    /// The stream of the event log.
    #[must_use]
    pub fn events_stream(&self) -> String {
        format!("{}_EVENTS", self.prefix)
    }

    /// The stream of the audit.
    #[must_use]
    pub fn audit_stream(&self) -> String {
        format!("{}_AUDIT", self.prefix)
    }

    /// The stream of dead letters.
    #[must_use]
    pub fn dlq_stream(&self) -> String {
        format!("{}_DLQ", self.prefix)
    }

    /// A key-value bucket: `runs`, `checkpoints`, `idempotency`, `control` or `schedules`.
    #[must_use]
    pub fn bucket(&self, name: &str) -> String {
        format!("{}_{name}", self.namespace)
    }

    /// The stream behind a bucket.
    #[must_use]
    pub fn bucket_stream(&self, name: &str) -> String {
        format!("KV_{}_{name}", self.namespace)
    }

    /// The subject of a bucket's key.
    #[must_use]
    pub fn key(&self, bucket: &str, key: &str) -> String {
        format!("$KV.{}_{bucket}.{key}", self.namespace)
    }

    /// The subject of a run's record.
    #[must_use]
    pub fn record(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("$KV.{}_runs.{tenant}.{run}", self.namespace)
    }

    /// Appends [`Names::record`] to `out`: there is one for every job.
    pub fn write_record(&self, tenant: &Tenant, run: &RunId, out: &mut Vec<u8>) {
        write(out, &["$KV.", &self.namespace, "_runs.", tenant.as_str(), ".", run.as_str()]);
    }

    // Jobs.

    /// The subject to which a job is published.
    #[must_use]
    pub fn job(&self, tenant: &Tenant, queue: &Queue, priority: Priority, job_type: &JobType) -> String {
        format!("{}.jobs.{tenant}.{queue}.{priority}.{job_type}", self.namespace)
    }

    /// The subjects of a lane's stream: all tenants and types of one queue and priority, or the jobs of one queue that
    /// were parked.
    #[must_use]
    pub fn lane_subjects(&self, queue: &Queue, lane: impl Into<Lane>) -> String {
        match lane.into() {
            Lane::Of(priority) => format!("{}.jobs.*.{queue}.{priority}.>", self.namespace),
            Lane::Returned => format!("{}.returned.*.{queue}.*.>", self.namespace),
        }
    }

    /// The subject of a parked job.
    #[must_use]
    pub fn parked(
        &self,
        tenant: &Tenant,
        queue: &Queue,
        priority: Priority,
        (job_type, key): (&JobType, &KindKey),
    ) -> String {
        format!("{}.parked.{tenant}.{queue}.{priority}.{key}.{job_type}", self.namespace)
    }

    /// A filter over the parked jobs of one priority and type, with any keys.
    #[must_use]
    pub fn parked_of(&self, tenant: &Tenant, queue: &Queue, priority: Priority, job_type: &JobType) -> String {
        format!("{}.parked.{tenant}.{queue}.{priority}.*.{job_type}", self.namespace)
    }

    /// The key in a parked job's subject.
    #[must_use]
    pub fn read_parked_key(&self, subject: &str) -> Option<KindKey> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".parked.")?;
        KindKey::read(rest.split('.').nth(3)?)
    }

    /// Whether a subject is that of a parked job.
    #[must_use]
    pub fn is_parked(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.starts_with(".parked."))
    }

    /// Whether a job's subject is that of the lane of returned jobs, which only nodes write to.
    #[must_use]
    pub fn is_returned(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.starts_with(".returned."))
    }

    /// The subject of a parked job once it is taken back.
    #[must_use]
    pub fn returned(&self, tenant: &Tenant, queue: &Queue, priority: Priority, job_type: &JobType) -> String {
        format!("{}.returned.{tenant}.{queue}.{priority}.{job_type}", self.namespace)
    }

    /// A filter over parked jobs; `None` stands for any.
    #[must_use]
    pub fn parked_where(&self, tenant: Option<&Tenant>, queue: Option<&Queue>, job_type: Option<&JobType>) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        let queue = queue.map_or("*", Queue::as_str);
        format!("{}.parked.{tenant}.{queue}.*.*.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// A filter over jobs of a queue that were taken back; `None` stands for any.
    #[must_use]
    pub fn returned_where(&self, tenant: Option<&Tenant>, queue: &Queue, job_type: Option<&JobType>) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        format!("{}.returned.{tenant}.{queue}.*.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// The subjects of the stream of parked jobs.
    #[must_use]
    pub fn parked_all(&self) -> String {
        format!("{}.parked.>", self.namespace)
    }

    /// Splits a job's subject into tokens, also that of a due, parked or taken-back job; `None` if it is none of these
    /// or has too few tokens.
    #[must_use]
    pub fn read_job<'a>(&self, subject: &'a str) -> Option<JobSubject<'a>> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix('.')?;
        let (plane, rest) = rest.split_once('.')?;
        if !["jobs", "due", "returned", "parked"].contains(&plane) {
            return None;
        }
        let mut tokens = rest.splitn(4, '.');
        let (tenant, queue, priority, last) = (tokens.next()?, tokens.next()?, tokens.next()?, tokens.next()?);
        // A parked job's subject has the key of its kind before the type.
        let job_type = if plane == "parked" { last.split_once('.')?.1 } else { last };
        Some(JobSubject { tenant, queue, priority, job_type })
    }

    // Time.

    /// The subject to which the server publishes a job when its schedule fires.
    #[must_use]
    pub fn due(&self, tenant: &Tenant, queue: &Queue, priority: Priority, job_type: &JobType) -> String {
        format!("{}.due.{tenant}.{queue}.{priority}.{job_type}", self.namespace)
    }

    /// The queue and the type in the subject of a due job.
    #[must_use]
    pub fn read_due<'s>(&self, subject: &'s str) -> Option<(&'s str, &'s str)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".due.")?;
        let mut parts = rest.splitn(4, '.');
        let (_tenant, queue, _priority, job_type) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some((queue, job_type))
    }

    /// All due jobs.
    #[must_use]
    pub fn due_all(&self) -> String {
        format!("{}.due.>", self.namespace)
    }

    /// The subject of a delayed job.
    #[must_use]
    pub fn schedule(&self, tenant: &Tenant, id: &str) -> String {
        format!("{}.schedules.{tenant}.{id}", self.namespace)
    }

    /// The subject of a run's next attempt. It has the round and the attempt, and, if the attempt was deferred, how
    /// often, so that a late writer cannot replace a newer one.
    #[must_use]
    pub fn retry(&self, run: &Run) -> String {
        let Run { tenant, run_id, round, deferrals, .. } = run;
        let (attempt, wait) =
            (run.next_attempt(), if *deferrals > 0 { format!("-{deferrals}") } else { String::new() });
        format!("{}.retries.{tenant}.{run_id}.{round}-{attempt}{wait}", self.namespace)
    }

    /// Filters over delayed jobs, retries and due jobs of a tenant; `None` stands for any.
    #[must_use]
    pub fn schedules_where(&self, tenant: Option<&Tenant>) -> [String; 3] {
        let tenant = tenant.map_or("*", Tenant::as_str);
        ["schedules", "retries", "due"].map(|plane| format!("{}.{plane}.{tenant}.>", self.namespace))
    }

    /// The subjects of the schedules stream.
    #[must_use]
    pub fn schedules_subjects(&self) -> Vec<String> {
        ["schedules", "retries", "due"].map(|plane| format!("{}.{plane}.>", self.namespace)).to_vec()
    }

    // Events.

    /// The subject of a live event.
    #[must_use]
    pub fn event(&self, run: &Run, kind: EventKind) -> String {
        let Run { tenant, queue, run_id, job_type, .. } = run;
        format!("{}.events.{tenant}.{kind}.{queue}.{run_id}.{job_type}", self.namespace)
    }

    /// Appends the subject of an event of this run to `out`: there are three for every job.
    pub fn write_event(&self, run: &Run, kind: EventKind, out: &mut Vec<u8>) {
        write(out, &[&self.namespace, ".events.", run.tenant.as_str(), ".", kind.as_str(), "."]);
        write(out, &[run.queue.as_str(), ".", run.run_id.as_str(), ".", run.job_type.as_str()]);
    }

    /// A filter over the live events of one run.
    #[must_use]
    pub fn events_of_run(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.events.{tenant}.*.*.{run}.>", self.namespace)
    }

    /// A filter over live events; `None` stands for any.
    #[must_use]
    pub fn events_where(
        &self,
        tenant: Option<&str>,
        kind: Option<&str>,
        queue: Option<&str>,
        run: Option<&str>,
    ) -> String {
        let [tenant, kind, queue, run] = [tenant, kind, queue, run].map(|token| token.unwrap_or("*"));
        format!("{}.events.{tenant}.{kind}.{queue}.{run}.>", self.namespace)
    }

    /// The subject of a live system event.
    #[must_use]
    pub fn system_event(&self, event: &str, queue: &str, node: &str, job_type: &str) -> String {
        format!("{}.events._sys.{event}.{queue}.{node}.{job_type}", self.namespace)
    }

    /// The subject of the node-name check, on which a node is asked whether it has this name.
    #[must_use]
    pub fn node(&self, name: &str) -> String {
        format!("{}.nodes.{name}", self.namespace)
    }

    /// The subject on which nodes ask each other for the end of a run that left no record.
    #[must_use]
    pub fn end_of(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.ends.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for such questions.
    #[must_use]
    pub fn ends(&self) -> String {
        format!("{}.ends.*.*", self.namespace)
    }

    /// Tenant and run of such a question.
    #[must_use]
    pub fn read_end<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        subject.strip_prefix(&*self.namespace)?.strip_prefix(".ends.")?.split_once('.')
    }

    /// The subject of a tenant's event log.
    #[must_use]
    pub fn event_log(&self, tenant: &str) -> String {
        format!("{}.eventlog.{tenant}", self.namespace)
    }

    /// The audit of a tenant; `*` for all.
    #[must_use]
    pub fn audit(&self, tenant: &str) -> String {
        format!("{}.audit.{tenant}", self.namespace)
    }

    // Dead letters, handlers, API.

    /// The subject of a dead letter.
    #[must_use]
    pub fn dead_letter(&self, tenant: &Tenant, queue: &Queue, job_type: &JobType) -> String {
        format!("{}.dlq.{tenant}.{queue}.{job_type}", self.namespace)
    }

    /// A filter over dead letters; `None` stands for any.
    #[must_use]
    pub fn dead_letters_where(
        &self,
        tenant: Option<&Tenant>,
        queue: Option<&Queue>,
        job_type: Option<&JobType>,
    ) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        let queue = queue.map_or("*", Queue::as_str);
        format!("{}.dlq.{tenant}.{queue}.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// A filter over the jobs of one lane; `None` stands for any.
    #[must_use]
    pub fn jobs_where(
        &self,
        tenant: Option<&Tenant>,
        queue: &Queue,
        priority: Priority,
        job_type: Option<&JobType>,
    ) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        format!("{}.jobs.{tenant}.{queue}.{priority}.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// The subjects of the dead letters' stream.
    #[must_use]
    pub fn dead_letters_all(&self) -> String {
        format!("{}.dlq.>", self.namespace)
    }

    /// The subject on which nodes and handlers that run a job learn that it was cancelled.
    #[must_use]
    pub fn cancel(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.cancel.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for cancelled runs.
    #[must_use]
    pub fn cancel_all(&self) -> String {
        format!("{}.cancel.*.*", self.namespace)
    }

    /// The subject on which nodes learn that a run is cancelled unless an attempt is running: a running attempt goes
    /// on, and its handler receives nothing.
    #[must_use]
    pub fn cancel_waiting(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.nodes._sys.cancel.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for those.
    #[must_use]
    pub fn cancel_waiting_all(&self) -> String {
        format!("{}.nodes._sys.cancel.*.*", self.namespace)
    }

    /// Tenant and run of a cancel subject of either kind.
    #[must_use]
    pub fn read_cancel<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        let plane = subject.strip_prefix(&*self.namespace)?;
        plane.strip_prefix(".cancel.").or_else(|| plane.strip_prefix(".nodes._sys.cancel."))?.split_once('.')
    }

    /// The subject on which nodes ask another whether it holds a job.
    #[must_use]
    pub fn holder(&self, node: &str) -> String {
        format!("{}.holder._sys.{node}", self.namespace)
    }

    /// The subject on which nodes ask each other which deliveries they hold. It has one token more than the subject of
    /// any node-name check.
    #[must_use]
    pub fn held(&self) -> String {
        format!("{}.nodes._sys.held", self.namespace)
    }

    /// The subject of an API endpoint; `tenant` may be `*` to serve all.
    #[must_use]
    pub fn api(&self, tenant: &str, endpoint: &str) -> String {
        format!("{}.api.{tenant}.{endpoint}", self.namespace)
    }

    /// Tenant and endpoint of an API request.
    #[must_use]
    pub fn read_api<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        subject.strip_prefix(&*self.namespace)?.strip_prefix(".api.")?.split_once('.')
    }

    /// Whether a subject lies within the namespace.
    #[must_use]
    pub fn is_ours(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

fn write(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

#[cfg(test)]
mod tests {
    use longshore_domain::JobOptions;

    use super::*;

    #[test]
    fn a_due_subject_has_queue_and_type() {
        let names = Names::new("longshore");
        let (tenant, queue) = (Tenant::parse("acme").unwrap(), Queue::parse("main").unwrap());
        let due = names.due(&tenant, &queue, Priority::DEFAULT, &JobType::parse("email.send").unwrap());
        assert_eq!(names.read_due(&due), Some(("main", "email.send")));
        assert_eq!(names.read_due(&names.schedule(&tenant, "r1")), None);
    }

    #[test]
    fn a_job_subject_is_put_together_and_taken_apart() {
        let names = Names::new("longshore");
        let job_type = JobType::parse("email.send").unwrap();
        let subject = names.job(&Tenant::default_tenant(), &Queue::main(), Priority::DEFAULT, &job_type);
        assert_eq!(subject, "longshore.jobs.default.main.p5.email.send");
        let read = names.read_job(&subject).unwrap();
        let wanted = JobSubject { tenant: "default", queue: "main", priority: "p5", job_type: "email.send" };
        assert_eq!(read, wanted);
        assert_eq!(names.read_job("longshore.due.default.main.p5.email.send"), Some(wanted));
        assert_eq!(names.read_job("longshore.jobs.default.main.p5"), None);
        assert_eq!(names.read_job("longshores.jobs.default.main.p5.x"), None);
    }

    #[test]
    fn a_parked_job_has_the_key_of_its_kind_before_its_type() {
        let names = Names::new("longshore");
        let job_type = JobType::parse("email.send").unwrap();
        let options = JobOptions { limit_key: Some("customer 7".to_owned()), ..JobOptions::default() };
        for key in [KindKey::default(), KindKey::of(Some(&options))] {
            let subject = names.parked(&Tenant::default_tenant(), &Queue::main(), Priority::DEFAULT, (&job_type, &key));
            assert_eq!(names.read_job(&subject).unwrap().job_type, "email.send", "{subject}");
            assert_eq!(names.read_parked_key(&subject), Some(key), "{subject}");
        }
        assert_eq!(names.read_job("longshore.parked.default.main.p5.email"), None, "it has no key");
    }

    #[test]
    fn a_lane_names_its_queue_and_priority() {
        let names = Names::new("longshore");
        let queue = Queue::parse("bulk_P2").unwrap();
        let stream = names.lane_stream(&queue, Priority::new(9).unwrap());
        assert_eq!(stream, "LONGSHORE_JOBS_bulk_P2_P9");
        assert_eq!(names.read_lane_stream(&stream), Some((queue.clone(), Priority::new(9).unwrap().into())));
        let stream = names.lane_stream(&queue, Lane::Returned);
        assert_eq!(names.read_lane_stream(&stream), Some((queue, Lane::Returned)));
        assert_eq!(names.read_lane_stream("LONGSHORE_DLQ"), None);
    }
}
