//! What a real node answers to those who decide about runs: its attempts and its API alike.

use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_domain::policy::Policies;
use longshore_domain::publication::Published;
use longshore_domain::{Run, SmolStr, Timestamp};

use crate::commit::handle::Committer;
use crate::metrics::Metrics;
use crate::ports::{RunPorts, Unlogged};
use crate::runtime::identity::Identity;
use crate::runtime::{new_seal, now};
use crate::trace::Tracer;

/// The parts of a node by which it answers.
pub(crate) struct NodeParts<'n> {
    pub(crate) backbone: &'n Backbone,
    pub(crate) identity: &'n Identity,
    pub(crate) policies: &'n Policies,
    pub(crate) metrics: &'n Metrics,
    pub(crate) committer: &'n Committer,
    pub(crate) tracer: Option<&'n Tracer>,
}

/// A part of a node that decides about runs.
pub(crate) trait InNode {
    fn own(&self) -> NodeParts<'_>;
}

impl<P: InNode> RunPorts for P {
    type Server = Backbone;

    fn server(&self) -> &Backbone {
        self.own().backbone
    }

    fn now(&self) -> Timestamp {
        now()
    }

    fn seal(&self) -> SmolStr {
        new_seal()
    }

    fn node(&self) -> &SmolStr {
        &self.own().identity.node
    }

    fn token(&self) -> SmolStr {
        self.own().identity.token()
    }

    fn lease(&self) -> Duration {
        self.own().backbone.storage().lease
    }

    fn idempotency_window(&self) -> Duration {
        self.own().backbone.storage().idempotency_window
    }

    fn policies(&self) -> &Policies {
        self.own().policies
    }

    fn metrics(&self) -> &Metrics {
        self.own().metrics
    }

    fn tracer(&self) -> Option<&Tracer> {
        self.own().tracer
    }

    async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        self.own().committer.publish(run, published).await
    }
}
