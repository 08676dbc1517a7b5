//! What to do about what a node says of itself: its reasons for not being ready, and its warnings.

/// How a warning of a type without a handler begins.
pub(super) const NO_HANDLER: &str = "no handler for ";
/// What to do about a clock that is off.
pub(super) const CLOCKS: &str =
    "let the clocks of nodes and servers be set by NTP: jobs go by the server's; a node that is far off is not ready";
/// How a node speaks of its own one.
const CLOCK: &str = "this machine's clock is ";
const ALTERED: &str = "find the client that altered it, then restart a node: at its start it sets the stream right";
/// For what has no remedy of its own here.
const ELSE: &str = "look at the node's log, and at What log lines mean in docs/operations.md";

/// What to do about a reason for which a node is not ready.
pub(super) fn of_reason(reason: &str) -> &'static str {
    if let Some(remedy) = reason.strip_prefix("stream ").and_then(of_bucket) {
        remedy
    } else if reason.starts_with("stream ") && reason.contains(" was altered") {
        ALTERED
    } else if reason.starts_with("stream ") {
        "wait some seconds: a node makes it again; if it does not, its log says why"
    } else if reason.starts_with("no server answers for the consumer") {
        "check the NATS servers: the stream has no leader; the node goes on by itself once it has"
    } else if reason.starts_with("NATS stores nothing") {
        "free space on the disk of the NATS server, look at its log, restart it if that speaks of a write error"
    } else if reason.starts_with("the NATS server has no room") {
        "raise its max_file_store, or delete streams or messages that nobody needs; the node goes on by itself"
    } else if reason.starts_with("the stream of run records is full") {
        "raise storage.runs_max_records or shorten completed_max_age, then restart a node"
    } else if reason.starts_with("a supervisor of this node") {
        "restart this node"
    } else if reason.contains("handlers neither end in time") {
        "the node's log names these handlers: have them react to their cancellation, then restart the node"
    } else if reason == "draining" {
        "nothing: the node is about to end"
    } else if reason.starts_with(CLOCK) {
        CLOCKS
    } else if reason.starts_with("not connected to NATS") && reason.contains("refuses its login") {
        "start the node with a login that the server takes: NATS_CREDS, NATS_URL, or what else it has"
    } else if reason.starts_with("not connected to NATS") {
        "the node goes on by itself once it has its connection; docs/operations.md explains its log"
    } else {
        ELSE
    }
}

/// The same, if a bucket is gone. An empty one would have jobs run that must not, so nodes do not make it while they
/// run.
fn of_bucket(reason: &str) -> Option<&'static str> {
    let (bucket, rest) = reason.split_once(' ')?;
    if !bucket.starts_with("KV_") || !rest.starts_with("is gone") {
        return None;
    }
    Some(match bucket.rsplit('_').next() {
        Some("runs") => {
            "stop the nodes and restore it from a backup; or restart a node, which makes it empty: jobs that wait in lanes \
             run as new ones, those that wait for a time or a retry become dead letters of kind invalid"
        }
        Some("idempotency") => {
            "restore it from a backup; or restart a node, which makes it empty: keys count as free, and a repeated job runs again"
        }
        Some("control") => {
            "restore it from a backup; or restart a node, which makes it empty: then pauses, limits and queues that were \
             set while the cluster ran are gone, and breakers are closed"
        }
        Some("concurrency") => {
            "wait until running attempts have ended and restart a node, which makes it empty: what still runs is not counted then"
        }
        Some("schedules") => {
            "restore it from a backup; or restart a node, which makes it empty: recurring schedules of the configuration \
             come back, others have to be put again"
        }
        _ => "restore it from a backup, or restart a node, which makes it empty",
    })
}

/// What to do about a stream that has little or no room left.
pub(super) fn of_full(stream: &str) -> &'static str {
    match stream {
        name if name.ends_with("_DLQ") => {
            "replay or discard dead letters, or raise storage.dlq_max_bytes: the oldest are dropped when it is full"
        }
        name if name.ends_with("_PARKED") => {
            "longshore queues says what parked jobs wait for; or raise storage.jobs_max_messages and jobs_max_bytes"
        }
        name if name.contains("_JOBS_") => {
            "more nodes or workers, or raise storage.jobs_max_messages and jobs_max_bytes: a full lane refuses jobs"
        }
        name if name.ends_with("_runs") => {
            "raise storage.runs_max_records or shorten completed_max_age: a full bucket stops all work"
        }
        name if name.ends_with("_concurrency") => "raise storage.concurrency_max_bytes, then restart the nodes",
        name if name.ends_with("_control") => "raise storage.control_max_bytes, then restart the nodes",
        _ => "see Storage is reserved in docs/operations.md",
    }
}

/// What to do about a warning of a node's health.
pub(super) fn of_warning(warning: &str) -> &'static str {
    if warning.starts_with(NO_HANDLER) && warning.contains("none was ever online") {
        "start a handler that subscribes to this subject; or, if the type is misspelt, submit its jobs under the right one"
    } else if warning.starts_with(NO_HANDLER) {
        "start a handler that subscribes to this subject"
    } else if warning.starts_with("jobs are answered twice on ") {
        "subscribe all handlers of this type in one queue group; a handler must reply to each job once"
    } else if warning.starts_with("no node serves queue ") {
        "start a node whose configuration names this queue"
    } else if warning.starts_with("stream ") && warning.contains(" had been deleted") {
        "find the client that deleted it and take its right to ($JS.API.STREAM.DELETE); docs/operations.md says what was lost \
         with it, by stream"
    } else if let Some((stream, _)) = warning.strip_prefix("stream ").and_then(|rest| rest.split_once(" is full: ")) {
        of_full(stream)
    } else if warning.starts_with("stream ") && warning.contains(" was altered") {
        ALTERED
    } else if warning.starts_with("stream ") && warning.contains("a handler's reply") {
        "nothing, if the server was just restarted; if it stays, give the account memory for streams (max_memory_store)"
    } else if warning.starts_with("stream ") {
        "start all nodes with the same storage settings: a node makes its streams larger at its start, never smaller unasked"
    } else if warning.starts_with("short of memory") {
        "a smaller concurrency of its queues, smaller payloads, or more memory; docs/admission.md explains it"
    } else if warning.contains("not started in the last two minutes") {
        "more workers or handlers, or a later deadline or expiry; docs/admission.md explains it"
    } else if warning.starts_with("queue ") && warning.contains(" is full") {
        "more nodes or workers for this queue, or a larger storage.jobs_max_messages and jobs_max_bytes"
    } else if warning.starts_with("bucket ") && warning.contains(" raise storage.") {
        "raise that setting, then restart the nodes one by one; find the tenant that makes so many keys"
    } else if warning.starts_with("bucket ") {
        "its size is fixed: have runs with many steps end, replay or discard the dead letters of such runs, and have steps keep \
         small results"
    } else if warning.contains(" and has delivered none for ") {
        "look at the log of the server that leads the lane's consumer; if it stays so, restart that server"
    } else if warning.starts_with("a job of queue ") {
        "check the NATS servers, the network and this machine; docs/operations.md says more under Slow deliveries"
    } else if warning.starts_with(CLOCK) {
        CLOCKS
    } else if warning.contains(" too large for NATS ") {
        "raise the server's max_payload to what it was, and have these jobs submitted again: longshore dlq list \
         --error-kind invalid"
    } else if warning.contains(" not what nodes write") || warning.contains(" that nodes did not write") {
        "finish the upgrade, if a newer version wrote it; else find the client that did, and take its right to publish"
    } else {
        ELSE
    }
}
