//! The subjects of events, live and in the log, and of the audit.

use longshore_domain::Run;
use longshore_domain::events::EventKind;

use super::Names;
use crate::wire::json::text;

impl Names {
    /// The subject of a live event.
    pub fn event(&self, run: &Run, kind: EventKind) -> String {
        let Run { tenant, queue, run_id, job_type, .. } = run;
        format!("{}.events.{tenant}.{kind}.{queue}.{run_id}.{job_type}", self.namespace)
    }

    /// Appends the subject of an event of this run to `out`: there are three for every job.
    pub fn write_event(&self, run: &Run, kind: EventKind, out: &mut Vec<u8>) {
        text(out, &[&self.namespace, ".events.", run.tenant.as_str(), ".", kind.as_str(), "."]);
        text(out, &[run.queue.as_str(), ".", run.run_id.as_str(), ".", run.job_type.as_str()]);
    }

    /// A filter over live events; `None` stands for any.
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
    pub fn system_event(&self, event: &str, queue: &str, node: &str, job_type: &str) -> String {
        format!("{}.events._sys.{event}.{queue}.{node}.{job_type}", self.namespace)
    }

    /// The subject of a tenant's event log.
    pub fn event_log(&self, tenant: &str) -> String {
        format!("{}.eventlog.{tenant}", self.namespace)
    }

    /// The audit of a tenant; `*` for all.
    pub fn audit(&self, tenant: &str) -> String {
        format!("{}.audit.{tenant}", self.namespace)
    }
}
