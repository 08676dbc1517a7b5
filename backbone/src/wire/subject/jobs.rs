//! The subjects of jobs: as clients publish them, parked, taken back, copied out of their lanes, and as dead letters.

use longshore_domain::{JobType, Lane, Priority, Queue, QueueLane, Tenant};

use super::Names;
use crate::wire::kind_key::KindKey;

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
    /// The subject to which a job is published.
    pub fn job(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType) -> String {
        format!("{}.jobs.{tenant}.{lane}.{job_type}", self.namespace)
    }

    /// A filter over all jobs of a tenant in their lanes.
    pub fn jobs_of(&self, tenant: &Tenant) -> String {
        format!("{}.jobs.{tenant}.>", self.namespace)
    }

    /// The subjects of a lane's stream: all tenants and types of one queue and priority, or the jobs of one queue that
    /// were parked.
    pub fn lane_subjects(&self, queue: &Queue, lane: impl Into<QueueLane>) -> String {
        match lane.into() {
            QueueLane::Of(priority) => format!("{}.jobs.*.{queue}.{priority}.>", self.namespace),
            QueueLane::Returned => format!("{}.returned.*.{queue}.*.>", self.namespace),
        }
    }

    /// The subject of a parked job.
    pub fn parked(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType, key: &KindKey) -> String {
        format!("{}.parked.{tenant}.{lane}.{key}.{job_type}", self.namespace)
    }

    /// A filter over the parked jobs of one priority and type, with any keys.
    pub fn parked_of(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType) -> String {
        format!("{}.parked.{tenant}.{lane}.*.{job_type}", self.namespace)
    }

    /// The key in a parked job's subject.
    pub fn read_parked_key(&self, subject: &str) -> Option<KindKey> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".parked.")?;
        KindKey::read(rest.split('.').nth(3)?)
    }

    /// Whether a subject is that of a parked job.
    pub fn is_parked(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.starts_with(".parked."))
    }

    /// Whether a job's subject is that of the lane of returned jobs, which only nodes write to.
    pub fn is_returned(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.starts_with(".returned."))
    }

    /// The subject of a parked job once it is taken back.
    pub fn returned(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType) -> String {
        format!("{}.returned.{tenant}.{lane}.{job_type}", self.namespace)
    }

    /// A filter over parked jobs; `None` stands for any.
    pub fn parked_where(&self, tenant: Option<&Tenant>, queue: Option<&Queue>, job_type: Option<&JobType>) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        let queue = queue.map_or("*", Queue::as_str);
        format!("{}.parked.{tenant}.{queue}.*.*.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// A filter over jobs of a queue that were taken back; `None` stands for any.
    pub fn returned_where(&self, tenant: Option<&Tenant>, queue: &Queue, job_type: Option<&JobType>) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        format!("{}.returned.{tenant}.{queue}.*.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// The subjects of the stream of parked jobs.
    pub fn parked_all(&self) -> String {
        format!("{}.parked.>", self.namespace)
    }

    /// Splits a job's subject into tokens, also that of a due, parked or taken-back job; `None` if it is none of these
    /// or has too few tokens.
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

    /// A filter over the jobs of one lane; `None` stands for any.
    pub fn jobs_where(&self, tenant: Option<&Tenant>, lane: &Lane, job_type: Option<&JobType>) -> String {
        let tenant = tenant.map_or("*", Tenant::as_str);
        format!("{}.jobs.{tenant}.{lane}.{}", self.namespace, job_type.map_or(">", JobType::as_str))
    }

    /// The subject of a dead letter.
    pub fn dead_letter(&self, tenant: &Tenant, queue: &Queue, job_type: &JobType) -> String {
        format!("{}.dlq.{tenant}.{queue}.{job_type}", self.namespace)
    }

    /// A filter over dead letters; `None` stands for any.
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

    /// The subjects of the dead letters' stream.
    pub fn dead_letters_all(&self) -> String {
        format!("{}.dlq.>", self.namespace)
    }

    /// The subject of the copy of a job that is taken out of its lane. It has fewer tokens than that of a parked job,
    /// so no filter over those takes it; and no tenant has such a name.
    pub fn copied(&self, lane: &Lane, sequence: u64) -> String {
        format!("{}.parked._copied.{lane}.{sequence}", self.namespace)
    }

    /// A filter over the copies of a queue's jobs.
    pub fn copies_of(&self, queue: &Queue) -> String {
        format!("{}.parked._copied.{queue}.*.*", self.namespace)
    }

    /// The lane of a copied job, and the sequence that it had there.
    pub fn read_copied(&self, subject: &str) -> Option<(Lane, u64)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".parked._copied.")?;
        let mut tokens = rest.split('.');
        let lane = Lane { queue: Queue::parse(tokens.next()?).ok()?, priority: Priority::parse(tokens.next()?).ok()? };
        Some((lane, tokens.next()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::JobOptions;

    use super::*;

    fn main() -> Lane {
        Lane::new(&Queue::main(), Priority::DEFAULT)
    }

    #[test]
    fn a_job_subject_is_put_together_and_taken_apart() {
        let names = Names::new("longshore");
        let job_type = JobType::parse("email.send").unwrap();
        let subject = names.job(&Tenant::default_tenant(), &main(), &job_type);
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
            let subject = names.parked(&Tenant::default_tenant(), &main(), &job_type, &key);
            assert_eq!(names.read_job(&subject).unwrap().job_type, "email.send", "{subject}");
            assert_eq!(names.read_parked_key(&subject), Some(key), "{subject}");
        }
        assert_eq!(names.read_job("longshore.parked.default.main.p5.email"), None, "it has no key");
    }

    #[test]
    fn no_filter_over_parked_jobs_takes_a_copy() {
        let names = Names::new("longshore");
        let lane = Lane::new(&Queue::main(), Priority::DEFAULT);
        let subject = names.copied(&lane, 77);
        assert_eq!(subject, "longshore.parked._copied.main.p5.77");
        assert_eq!(names.read_copied(&subject), Some((lane.clone(), 77)));
        assert_eq!((names.read_job(&subject), names.read_parked_key(&subject)), (None, None));
        assert!(Tenant::parse("_copied").is_err());
        let job_type = JobType::parse("t").unwrap();
        let filters =
            [names.parked_where(None, Some(&lane.queue), None), names.parked_where(None, None, Some(&job_type))];
        for filter in filters {
            let tokens = |subject: &str| subject.split('.').count();
            assert!(tokens(&subject) < tokens(&filter), "{filter}");
        }
    }
}
