//! The subjects of ticks, by which the server says that a recurring schedule is due. They lie in the stream of
//! schedules.

use longshore_domain::{ScheduleId, Tenant};

use super::Names;

/// The token that marks ticks. No run or queue has that name.
const TICK: &str = "_tick";

impl Names {
    /// The subject of a recurring schedule's next tick. It has one token more than that of any delayed job, whose run
    /// may have the same id.
    #[must_use]
    pub fn tick(&self, tenant: &Tenant, id: &ScheduleId) -> String {
        format!("{}.schedules.{tenant}.{TICK}.{id}", self.namespace)
    }

    /// The subject to which the server publishes a tick. No queue has that name.
    #[must_use]
    pub fn due_tick(&self, tenant: &Tenant, id: &ScheduleId) -> String {
        format!("{}.due.{tenant}.{TICK}.{id}", self.namespace)
    }

    /// Tenant and schedule of a tick that has fired.
    #[must_use]
    pub fn read_due_tick(&self, subject: &str) -> Option<(Tenant, ScheduleId)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".due.")?;
        let (tenant, rest) = rest.split_once('.')?;
        let id = rest.strip_prefix(TICK)?.strip_prefix('.')?;
        Some((Tenant::parse(tenant).ok()?, ScheduleId::parse(id).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
