//! The API for callers within the process, such as the HTTP gateway: the code that answers NATS requests, without NATS
//! in between.
//!
//! It has no rules of its own: who may ask what, the audit and the traces are the service's.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use longshore_backbone::service::{AT_ONCE, Request, Serve as _};
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_backbone::wire::json::Object;
use longshore_domain::Tenant;
use tokio::sync::Semaphore;

use crate::api::keys::KeyCheck;
use crate::api::limits::{self, TenantRate};
use crate::service::ServicePart;
use crate::trace::Tracer;

/// Asks the node's own API. Cheap to clone.
#[derive(Clone)]
pub struct ApiHandle {
    part: Arc<ServicePart>,
    keys: Arc<KeyCheck>,
    room: Arc<Semaphore>,
}

impl ApiHandle {
    pub(crate) fn new(part: ServicePart) -> Self {
        let keys = Arc::new(KeyCheck::new(part.api.backbone.clone()));
        Self { part: Arc::new(part), keys, room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Says whose an API key is.
    pub fn keys(&self) -> &KeyCheck {
        &self.keys
    }

    pub(crate) fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.part.api.tracer.as_ref()
    }

    /// How much a tenant may submit; `None`: as much as it likes, or NATS does not answer.
    pub async fn rate_of(&self, tenant: &Tenant) -> Option<TenantRate> {
        limits::rate_of(&self.part.api, tenant).await
    }

    /// Most jobs that `submit.batch` takes at once.
    pub fn most_in_batch(&self) -> usize {
        self.part.most_in_batch()
    }

    /// Waits until every request at work is answered but those that wait; it takes no more by then.
    pub(crate) async fn answered(&self) {
        let all = u32::try_from(AT_ONCE).unwrap_or(u32::MAX);
        drop(self.room.acquire_many(all).await);
    }

    /// The answer to a request. A request that changes something goes on to its end if the caller gives up; one that
    /// waits for a run ends with its caller.
    ///
    /// # Errors
    /// As the contract lists them for the endpoint; 503 while 1,024 requests are worked on, not counting those that
    /// wait, and once the node leaves.
    pub async fn ask(&self, request: Request) -> Result<Object, ApiError> {
        if self.part.ends().is_cancelled() {
            return Err(ApiError::unavailable("the node ends; ask another, or again"));
        }
        let failed = || ApiError::new(Code::Internal, "the node failed over this request; its log says why");
        if self.part.waits(&request.endpoint) {
            let answer = AssertUnwindSafe(self.part.serve(request)).catch_unwind().await;
            return answer.unwrap_or_else(|_| Err(failed()));
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return Err(ApiError::unavailable(format!("this node is working on {AT_ONCE} requests already")));
        };
        let part = Arc::clone(&self.part);
        let answer = tokio::spawn(async move {
            let answer = part.serve(request).await;
            drop(room);
            answer
        });
        // The panic hook has written the cause to stderr.
        answer.await.unwrap_or_else(|_| Err(failed()))
    }
}
