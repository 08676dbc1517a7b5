//! What the answer to the request at hand says of it.

use longshore_domain::RunId;

tokio::task_local! {
    pub(super) static SAID: Said;
}

#[derive(Clone, Default)]
pub(super) struct Said {
    pub(super) request_id: Option<String>,
    pub(super) trace_id: Option<String>,
    /// The run that its path names.
    pub(super) run_id: Option<RunId>,
}

/// What is said of the request that is being answered.
pub(super) fn said() -> Said {
    SAID.try_with(Clone::clone).unwrap_or_default()
}
