//! The ends of runs that leave no record. If a type keeps only its failures, the end of a run that completes is stored
//! nowhere; only its event says so. A caller that asks for such an end a moment too late still gets it: the nodes ask
//! the one that ran it.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use longshore_backbone::wire::api::{Encoded, Record};
use longshore_backbone::wire::record;
use longshore_domain::{Run, RunId, Tenant};

use crate::runtime::Unpoisoned as _;

/// Maximum bytes of ends that are remembered; the oldest go first.
const REMEMBERED: usize = 4 * 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct UnstoredEnds(Mutex<Ends>);

#[derive(Debug, Default)]
struct Ends {
    shown: HashMap<(Tenant, RunId), Encoded<Record>>,
    order: VecDeque<(Tenant, RunId)>,
    bytes: usize,
}

impl UnstoredEnds {
    pub(crate) fn add(&self, run: &Run) {
        let shown = record::show(run);
        let name = (run.tenant.clone(), run.run_id.clone());
        let mut ends = self.0.lock().unpoisoned();
        ends.bytes += shown.size();
        if let Some(before) = ends.shown.insert(name.clone(), shown) {
            ends.bytes -= before.size();
        } else {
            ends.order.push_back(name);
        }
        while ends.bytes > REMEMBERED {
            let Some(oldest) = ends.order.pop_front() else { break };
            let gone = ends.shown.remove(&oldest).map_or(0, |end| end.size());
            ends.bytes -= gone;
        }
    }

    /// The end of this run, as its record would show it.
    pub(crate) fn find(&self, tenant: &Tenant, run_id: &RunId) -> Option<Encoded<Record>> {
        let ends = self.0.lock().unpoisoned();
        ends.shown.get(&(tenant.clone(), run_id.clone())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::run::RunResult;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{Job, Timestamp};

    #[test]
    fn what_is_remembered_of_ends_is_bounded() {
        let unstored_ends = UnstoredEnds::default();
        let tenant = Tenant::default_tenant();
        let id = |number: usize| RunId::parse(&format!("main-p5-{number}")).unwrap();
        let result = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(60_000))).unwrap();
        for number in 1..=200 {
            let job = Job { tenant: tenant.clone(), run_id: id(number), ..crate::tests::job("t", "r") };
            let mut run = Run::new(&job, 1, Timestamp::from_millis(1));
            run.begin(1, &"n".into(), Timestamp::from_millis(2));
            run.settle(Settlement::Complete(RunResult::Json(result.clone())), Timestamp::from_millis(3));
            unstored_ends.add(&run);
        }
        assert!(unstored_ends.find(&tenant, &id(1)).is_none() && unstored_ends.find(&tenant, &id(200)).is_some());
        assert!(unstored_ends.0.lock().unwrap().bytes <= REMEMBERED);
    }
}
