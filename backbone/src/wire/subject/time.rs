//! The subjects of jobs that wait for a time, in the stream of schedules and once they are due; and of ticks, by which
//! the server says that a recurring schedule is due. Those lie in the same stream.

use longshore_domain::{JobType, Lane, Run, ScheduleId, Tenant};

use super::Names;

/// The token that marks ticks. No run or queue has that name.
const TICK: &str = "_tick";

impl Names {
    /// The subject to which the server publishes a job when its schedule fires.
    pub fn due(&self, tenant: &Tenant, lane: &Lane, job_type: &JobType) -> String {
        format!("{}.due.{tenant}.{lane}.{job_type}", self.namespace)
    }

    /// The queue and the type in the subject of a due job.
    pub fn read_due<'s>(&self, subject: &'s str) -> Option<(&'s str, &'s str)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".due.")?;
        let mut parts = rest.splitn(4, '.');
        let (_tenant, queue, _priority, job_type) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some((queue, job_type))
    }

    /// All due jobs.
    pub fn due_all(&self) -> String {
        format!("{}.due.>", self.namespace)
    }

    /// The subject of a delayed job.
    pub fn schedule(&self, tenant: &Tenant, id: &str) -> String {
        format!("{}.schedules.{tenant}.{id}", self.namespace)
    }

    /// The subject of a run's next attempt. It has the round and the attempt, and, if the attempt was deferred, how
    /// often, so that a late writer cannot replace a newer one.
    pub fn retry(&self, run: &Run) -> String {
        let Run { tenant, run_id, round, deferrals, .. } = run;
        let (attempt, wait) =
            (run.next_attempt(), if *deferrals > 0 { format!("-{deferrals}") } else { String::new() });
        format!("{}.retries.{tenant}.{run_id}.{round}-{attempt}{wait}", self.namespace)
    }

    /// Filters over delayed jobs, retries and due jobs of a tenant; `None` stands for any.
    pub fn schedules_where(&self, tenant: Option<&Tenant>) -> [String; 3] {
        let tenant = tenant.map_or("*", Tenant::as_str);
        ["schedules", "retries", "due"].map(|plane| format!("{}.{plane}.{tenant}.>", self.namespace))
    }

    /// The subjects of the schedules stream.
    pub fn schedules_subjects(&self) -> Vec<String> {
        ["schedules", "retries", "due"].map(|plane| format!("{}.{plane}.>", self.namespace)).to_vec()
    }

    /// The subject of a recurring schedule's next tick. It has one token more than that of any delayed job, whose run
    /// may have the same id.
    pub fn tick(&self, tenant: &Tenant, id: &ScheduleId) -> String {
        format!("{}.schedules.{tenant}.{TICK}.{id}", self.namespace)
    }

    /// The subject to which the server publishes a tick. No queue has that name.
    pub fn due_tick(&self, tenant: &Tenant, id: &ScheduleId) -> String {
        format!("{}.due.{tenant}.{TICK}.{id}", self.namespace)
    }

    /// Tenant and schedule of a tick that has fired.
    pub fn read_due_tick(&self, subject: &str) -> Option<(Tenant, ScheduleId)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".due.")?;
        let (tenant, rest) = rest.split_once('.')?;
        let id = rest.strip_prefix(TICK)?.strip_prefix('.')?;
        Some((Tenant::parse(tenant).ok()?, ScheduleId::parse(id).ok()?))
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

    #[test]
    fn a_tick_is_neither_a_job_nor_a_delayed_run() {
        let (names, tenant) = (Names::new("longshore"), Tenant::default_tenant());
        let id = ScheduleId::parse("nightly").unwrap();
        let due = names.due_tick(&tenant, &id);
        assert_eq!(names.read_due_tick(&due), Some((tenant.clone(), id.clone())));
        assert_eq!(names.read_job(&due), None);
        assert_ne!(names.tick(&tenant, &id), names.schedule(&tenant, "nightly"));
        assert_eq!(names.read_due_tick("longshore.due.default.main.p5.email.send"), None);
    }
}
