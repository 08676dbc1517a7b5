//! The subjects of jobs that wait for a time: in the stream of schedules, and once they are due.

use longshore_domain::{JobType, Lane, Run, Tenant};

use super::Names;

impl Names {
    /// The subject to which the server publishes a job when its schedule fires.
    #[must_use]
    pub fn due(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType) -> String {
        format!("{}.due.{tenant}.{lane}.{job_type}", self.namespace)
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
}

#[cfg(test)]
mod tests {
    use longshore_domain::{Priority, Queue};

    use super::*;

    #[test]
    fn a_due_subject_has_queue_and_type() {
        let names = Names::new("longshore");
        let (tenant, lane) = (Tenant::parse("acme").unwrap(), Lane::new(&Queue::main(), Priority::DEFAULT));
        let due = names.due(&tenant, &lane, &JobType::parse("email.send").unwrap());
        assert_eq!(names.read_due(&due), Some(("main", "email.send")));
        assert_eq!(names.read_due(&names.schedule(&tenant, "r1")), None);
    }
}
