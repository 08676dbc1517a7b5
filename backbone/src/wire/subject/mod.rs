//! Every subject, stream and bucket of the contract. No other module builds one.

use std::sync::Arc;

mod events;
mod jobs;
mod nodes;
mod streams;
mod time;
mod work;

pub use jobs::JobSubject;

/// The names of one namespace.
#[derive(Debug, Clone)]
pub struct Names {
    namespace: Arc<str>,
    prefix: Arc<str>,
}

impl Names {
    /// The names under `namespace`, which is one token.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: Arc::from(namespace), prefix: Arc::from(namespace.to_uppercase()) }
    }

    /// The namespace itself: first token of every subject.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The subject of an API endpoint; `tenant` may be `*` to serve all.
    pub fn api(&self, tenant: &str, endpoint: &str) -> String {
        format!("{}.api.{tenant}.{endpoint}", self.namespace)
    }

    /// Tenant and endpoint of an API request.
    pub fn read_api<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        subject.strip_prefix(&*self.namespace)?.strip_prefix(".api.")?.split_once('.')
    }

    /// Whether a subject lies within the namespace.
    pub fn is_ours(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}
