//! Waiting for runs' ends: how many may, and the ends of those runs that leave no record.
//!
//! Who waits keeps a subscription and a task, so both are bounded, for each tenant and for the node. Of a type that keeps
//! its failures only, the end of a run that completes stands nowhere but in its event; whoever asks for it a moment too
//! late finds it at the node that had it, which the others ask.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::wire::api::{ApiError, Code, Encoded, Record};
use longshore_backbone::wire::record;
use longshore_domain::{Run, RunId, Tenant};

use crate::carry_out::chain;
use crate::shared::Shared;

/// Waits of one tenant.
const TENANT_MOST: usize = 1_024;
/// Waits of all tenants.
const NODE_MOST: usize = 16_384;
/// When to come again.
const COME_AGAIN_MS: u64 = 1_000;

/// Who waits for ends on this node.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    by_tenant: Mutex<HashMap<String, usize>>,
}

/// A wait; over when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    tenant: String,
}

impl Waits {
    /// One wait more.
    ///
    /// # Errors
    /// 429 where the tenant has too many already, 503 where the node has.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &str) -> Result<Waiting, ApiError> {
        let mut by_tenant = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, all) = (by_tenant.get(tenant).copied().unwrap_or(0), by_tenant.values().sum::<usize>());
        let refused = |code, whose: &str, most: usize| ApiError {
            retry_after_ms: Some(COME_AGAIN_MS),
            ..ApiError::new(code, format!("{whose} waits for {most} runs on this node already; follow events instead"))
        };
        if own >= TENANT_MOST {
            return Err(refused(Code::RateLimited, &format!("tenant {tenant}"), TENANT_MOST));
        }
        if all >= NODE_MOST {
            return Err(refused(Code::Unavailable, "everybody together", NODE_MOST));
        }
        by_tenant.insert(tenant.to_owned(), own + 1);
        Ok(Waiting { waits: Arc::clone(self), tenant: tenant.to_owned() })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut by_tenant = self.waits.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                by_tenant.remove(&self.tenant);
            }
        }
    }
}

/// Most bytes of ends that are remembered; the oldest go first.
const REMEMBERED: usize = 4 * 1024 * 1024;

/// The last runs that completed here and left no record.
#[derive(Debug, Default)]
pub(crate) struct Unkept(Mutex<Ends>);

#[derive(Debug, Default)]
struct Ends {
    shown: HashMap<(Tenant, RunId), Encoded<Record>>,
    order: VecDeque<(Tenant, RunId)>,
    bytes: usize,
}

impl Unkept {
    /// Remembers an end.
    pub(crate) fn add(&self, run: &Run) {
        let shown = record::show(run);
        let name = (run.tenant.clone(), run.run_id.clone());
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The end of this run as its record would show it.
    pub(crate) fn find(&self, tenant: &Tenant, run_id: &RunId) -> Option<Encoded<Record>> {
        let ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.shown.get(&(tenant.clone(), run_id.clone())).cloned()
    }
}

/// How long the other nodes are given to say that they saw an end.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The end of a run that left no record, from this node's memory or another's.
pub(crate) async fn end_of(shared: &Shared, tenant: &Tenant, run_id: &RunId) -> Option<Encoded<Record>> {
    if let Some(end) = shared.unkept.find(tenant, run_id) {
        return Some(end);
    }
    let subject = shared.backbone.names().end_of(tenant, run_id);
    let answer = shared.backbone.ask_nodes(subject, Bytes::new(), ANSWER_WITHIN).await?;
    Encoded::from_text(&answer)
}

/// Answers other nodes that ask for such ends, until the process ends.
pub(crate) async fn answer(shared: Arc<Shared>) {
    let mut questions = match shared.backbone.questions(shared.backbone.names().ends()).await {
        Ok(questions) => questions,
        Err(error) => panic!("questions for ends cannot be heard: {}", chain(&error)),
    };
    while let Some(question) = questions.next().await {
        let asked = shared.backbone.names().read_end(&question.subject);
        let asked = asked.and_then(|(tenant, run)| Some((Tenant::parse(tenant).ok()?, RunId::parse(run).ok()?)));
        if let Some(end) = asked.and_then(|(tenant, run)| shared.unkept.find(&tenant, &run)) {
            shared.backbone.answer_node(question, Bytes::from(end.into_bytes())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::run::RunResult;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{Job, JobType, Priority, Queue, Timestamp};

    #[test]
    fn one_tenant_cannot_take_all_waits() {
        let waits = Arc::new(Waits::default());
        let mut own: Vec<_> = (0..TENANT_MOST).map(|_| waits.enter("acme").unwrap()).collect();
        let refused = waits.enter("acme").unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (429, Some(COME_AGAIN_MS)));
        let others = (0..NODE_MOST - TENANT_MOST).map(|number| waits.enter(&format!("t{}", number % 100)).unwrap());
        let others: Vec<_> = others.collect();
        assert_eq!(waits.enter("one-more").unwrap_err().code, 503);
        own.pop();
        assert!(waits.enter("acme").is_ok());
        drop((own, others));
        assert!(waits.by_tenant.lock().unwrap().is_empty(), "nothing is kept of those who do not wait");
    }

    #[test]
    fn what_is_remembered_of_ends_is_bounded() {
        let unkept = Unkept::default();
        let tenant = Tenant::default_tenant();
        let id = |number: usize| RunId::parse(&format!("main-p5-{number}")).unwrap();
        let result = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(60_000))).unwrap();
        for number in 1..=200 {
            let job = Job {
                tenant: tenant.clone(),
                queue: Queue::main(),
                priority: Priority::DEFAULT,
                job_type: JobType::parse("t").unwrap(),
                run_id: id(number),
                options: None,
            };
            let mut run = Run::new(&job, 1, Timestamp::from_millis(1));
            run.begin(1, &"n".into(), Timestamp::from_millis(2));
            run.settle(Settlement::Complete(RunResult::Json(result.clone())), Timestamp::from_millis(3));
            unkept.add(&run);
        }
        assert!(unkept.find(&tenant, &id(1)).is_none() && unkept.find(&tenant, &id(200)).is_some());
        assert!(unkept.0.lock().unwrap().bytes <= REMEMBERED);
    }
}
