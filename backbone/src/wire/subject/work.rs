//! Subjects of remote handlers, and of what they send back.

use longshore_domain::{JobType, Tenant};

use super::Names;

const REPLY_PROBE: &str = "probe-";

impl Names {
    /// The subject on which a remote handler of a tenant's type listens.
    pub fn work(&self, tenant: &Tenant, job_type: &JobType) -> String {
        format!("{}.work.{tenant}.{job_type}", self.namespace)
    }

    /// The same for all tenants.
    pub fn work_of_all(&self, job_type: &JobType) -> String {
        format!("{}.work.*.{job_type}", self.namespace)
    }

    /// Tenant and type of a remote handler's subject.
    pub fn read_work<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        subject.strip_prefix(&*self.namespace)?.strip_prefix(".work.")?.split_once('.')
    }

    /// Whether a reply subject is one on which a node receives handlers' replies.
    pub fn is_replies(&self, subject: &str) -> bool {
        subject.starts_with(&self.replies(""))
    }

    /// The subject on which one caller receives handlers' replies; a token is added for each call. It is an inbox,
    /// because that is where handlers are permitted to reply.
    pub fn replies(&self, caller: &str) -> String {
        format!("_INBOX.{}-replies.{caller}", self.namespace)
    }

    /// The subject on which a caller probes whether a handler is subscribed to the request of a call. It differs from
    /// the reply's: only the last message of each subject is stored, and that must be the reply.
    pub fn reply_probe(&self, inbox: &str, number: u64) -> String {
        format!("{inbox}.{REPLY_PROBE}{number}")
    }

    /// The number of the call that a message in a caller's inbox is about.
    pub fn read_reply(subject: &str) -> Option<u64> {
        let (_, token) = subject.rsplit_once('.')?;
        token.strip_prefix(REPLY_PROBE).unwrap_or(token).parse().ok()
    }

    /// The subject of the marker that shows that the server has the request of a call.
    pub fn request_sent(&self, inbox: &str, number: u64) -> String {
        format!("{inbox}.{number}.sent")
    }

    /// The stream of handlers' last replies.
    pub fn replies_stream(&self) -> String {
        format!("{}_REPLIES", self.prefix)
    }

    /// Prefix of every remote handler's subject.
    pub fn work_prefix(&self) -> String {
        format!("{}.work.", self.namespace)
    }
}
