//! Remote handlers: any NATS subscription or micro service, in any language.
//!
//! A job is a request on its type's subject. The node keeps the lease for as long as the time limit allows, so a slow
//! handler is never run twice for being slow; silence ends the attempt only if a heartbeat was promised.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_backbone::handlers::{Call, HandlerReply, Reply, ServiceError, Signal, SignalAnswer, SignalKind};
use longshore_backbone::steps::{StepCall, StepResult};
use longshore_backbone::wire::header::{for_handler, names};
use longshore_backbone::wire::record;
use longshore_domain::outcome::Outcome;
use longshore_domain::policy::TypePolicy;
use longshore_domain::{DurationText, ErrorKind, Failure, Timestamp};

use crate::attempt::announce::announce;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{CurrentAttempt, RunningAttempt, of_current};
use crate::attempt::stop::STOPS_WITHIN;
use crate::attempt::{clock, progress, steps};
use crate::handlers::handler::Context;
use crate::limits::concurrency::SlotPermit;
use crate::ports::RunPorts as _;
use crate::runtime::log_run::{About, log_run};
use crate::runtime::{Unpoisoned as _, new_seal, now};

/// Most handlers answer sooner, and then nothing has to be asked. After this long the node asks the server whether any
/// handler is subscribed at all. The server would have said that at once, but it may be far away.
const ASK_AFTER: Duration = Duration::from_millis(50);
/// The question or its answer may have been lost with a connection.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// How often a call that is under way looks whether its handlers have promised heartbeats by now.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Has the current attempt done by a remote handler of its type.
pub(crate) async fn perform(
    ports: &NodePorts,
    current: &CurrentAttempt,
    context: Context,
    slots: Option<Arc<SlotPermit>>,
) -> Outcome {
    let headers = headers(current, &context);
    let call = ports.caller.call(&context.job, headers, context.payload.clone()).await;
    let mut open = OpenCall { ports, current, context: &context, call: Some((call, slots)) };
    let (call, _) = open.call.as_mut().expect("it was just opened");
    let outcome = listen(ports, current, &context, call).await;
    open.call = None;
    outcome
}

/// A call that the handler has not answered. If it is dropped, because the attempt was cancelled or is over, the
/// handler is asked to stop. It may go on all the same: so its slots go back once it has replied, or its time limit is
/// over.
struct OpenCall<'a> {
    ports: &'a NodePorts,
    current: &'a CurrentAttempt,
    context: &'a Context,
    call: Option<(Call, Option<Arc<SlotPermit>>)>,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let Some((mut call, slots)) = self.call.take() else { return };
        // Nobody reads them any more: who asks is answered as of a call that is over.
        call.signals.close();
        let (caller, job) = (self.ports.caller.clone(), self.context.job.clone());
        let deadline = clock::stops_at(self.current).unwrap_or(self.context.deadline);
        tokio::spawn(async move {
            caller.cancel(&job).await;
            if slots.is_some() {
                let _ = tokio::time::timeout_at(deadline.into(), &mut call.reply).await;
            }
        });
    }
}

async fn listen(ports: &NodePorts, current: &CurrentAttempt, context: &Context, call: &mut Call) -> Outcome {
    let mut last_sign = Instant::now();
    let mut ask_at = last_sign + ASK_AFTER;
    let (mut announced, mut asked_to_stop) = (false, false);
    let (mut has_started, mut has_beaten, mut has_warned) = (false, false, false);
    let mut promised = None;
    loop {
        // The first job of a type may come before its handlers were asked what they promise.
        promised = promised.or_else(|| ports.routing.heartbeat(&context.job, has_beaten));
        let silence = if announced { last_sign + promised.unwrap_or(CHECK_AGAIN_AFTER) } else { ask_at };
        tokio::select! {
            biased;
            // Signals first: those sent before the reply are in the channel when the reply comes.
            Some(signal) = call.signals.recv() => {
                last_sign = Instant::now();
                has_beaten |= signal.kind == SignalKind::Heartbeat;
                if !announced {
                    announced = true;
                    announce(ports, current).await;
                }
                if signal.kind == SignalKind::Started && !std::mem::replace(&mut has_started, true) {
                    clock::restart_clock(ports, current);
                }
                if let Some(reason) = &signal.unknown && !std::mem::replace(&mut has_warned, true) {
                    let about = About::job(&context.job, context.attempt).traced(context.trace_id);
                    log_run!(warn, about, "a signal of its handler counts as a heartbeat: Longshore-Signal {reason}");
                }
                take_signal(ports, current, context, signal).await;
            }
            reply = &mut call.reply => return match reply {
                Ok(reply) => end_of(ports, current, context, reply, announced).await,
                Err(_) => Outcome::failed(ErrorKind::Retryable, "the connection to the handler was lost"),
            },
            Ok(()) = &mut call.found, if !announced => {
                ports.routing.found_handlers(&context.job);
                last_sign = Instant::now();
                announced = true;
                announce(ports, current).await;
            }
            () = context.cancellation.cancelled(), if !asked_to_stop => {
                asked_to_stop = true;
                ports.caller.cancel(&context.job).await;
            }
            () = tokio::time::sleep_until(tokio::time::Instant::from_std(silence)) => {
                match promised {
                    Some(promised) if announced => {
                        stop(ports, context, call).await;
                        let silent = DurationText(promised);
                        return Outcome::failed(ErrorKind::LeaseExpired, format!("no signal from the handler for {silent}"));
                    }
                    None if announced => {
                        last_sign = Instant::now();
                        continue;
                    }
                    _ => {}
                }
                ask_at = Instant::now() + ASK_AGAIN_AFTER;
                ports.caller.probe(call).await;
            }
        }
    }
}

/// Has a silent handler stop, as it may be at work all the same. What it replies now comes too late.
async fn stop(ports: &NodePorts, context: &Context, call: &mut Call) {
    ports.caller.cancel(&context.job).await;
    let _ = tokio::time::timeout(STOPS_WITHIN, &mut call.reply).await;
}

/// The outcome of an attempt by what came in reply; `announced`: its start is published.
async fn end_of(
    ports: &NodePorts,
    current: &CurrentAttempt,
    context: &Context,
    reply: Reply,
    announced: bool,
) -> Outcome {
    let reply = match reply {
        Reply::NoResponders => {
            ports.routing.forget_handlers(&context.job);
            return Outcome::NoHandler;
        }
        Reply::NotSent => {
            let about = About::job(&context.job, context.attempt).traced(context.trace_id);
            log_run!(warn, about, "the request to its handler was lost with the connection to NATS");
            return Outcome::failed(ErrorKind::Retryable, "the request was lost with the connection to NATS");
        }
        Reply::Gone => {
            // The handler itself may have another connection by now.
            ports.caller.cancel(&context.job).await;
            let gone = "its handler is gone: the connection to NATS over which it got the job has ended";
            return Outcome::failed(ErrorKind::LeaseExpired, gone);
        }
        Reply::Unreadable(reason) => {
            return Outcome::failed(ErrorKind::Retryable, format!("the handler's reply cannot be read: {reason}"));
        }
        Reply::Answer(reply) => reply,
    };
    ports.routing.found_handlers(&context.job);
    if let Some(lasts) = reply.hold.filter(|_| reply.unreadable.is_none()) {
        ports.limits.hold(&context.job, lasts);
    }
    let outcome = match reply.detach.filter(|_| reply.unreadable.is_none()) {
        Some(lasts) => {
            let token = of_current(current, |running| running.token.clone()).unwrap_or_default();
            Outcome::Detached { token, lasts }
        }
        None => outcome_of(*reply, ports.policy(&context.job), announced),
    };
    // A handler without free capacity has not started anything.
    if !announced && !matches!(outcome, Outcome::Busy { .. }) {
        announce(ports, current).await;
    }
    outcome
}

async fn take_signal(ports: &NodePorts, current: &CurrentAttempt, context: &Context, signal: Signal) {
    let body = match signal.kind {
        SignalKind::Started | SignalKind::Heartbeat => Ok(Bytes::new()),
        SignalKind::Progress => {
            progress::report(ports, current, &signal.body).await;
            Ok(Bytes::new())
        }
        SignalKind::Log => {
            progress::log(ports, current, &signal.body).await;
            Ok(Bytes::new())
        }
        SignalKind::StepGet => step(ports, current, &signal.body, false).await,
        SignalKind::StepPut => step(ports, current, &signal.body, true).await,
    };
    // Where the step has another result the attempt goes on.
    let is_lost = matches!(&body, Err((409, _))) && steps::is_lost(ports, current);
    let left = |at: Instant| at.saturating_duration_since(Instant::now());
    let deadline = clock::stops_at(current).map(|at| now().plus(left(at)));
    let cancelled = is_lost || context.cancellation.is_cancelled();
    ports.caller.answer(signal, SignalAnswer { cancelled, deadline, body }).await;
}

/// The answer to a signal about a step: JSON, or a status and the reason of a refusal.
async fn step(ports: &NodePorts, current: &CurrentAttempt, body: &[u8], puts: bool) -> Result<Bytes, (u16, String)> {
    let call = StepCall::read(body, puts).map_err(|reason| (400, reason))?;
    Ok(StepResult::answer(steps::take(ports, current, &call).await?.as_ref()))
}

fn headers(current: &CurrentAttempt, context: &Context) -> Headers {
    let mut current = current.lock().unpoisoned();
    let mut headers = match current.as_mut() {
        Some(RunningAttempt { assignment, attempt_state, token, .. }) => {
            *token = new_seal();
            let mut headers = for_handler(assignment.headers(), &attempt_state.run, context.attempt);
            if let (Some(trace), Some(attempt)) = (&assignment.payload.trace, attempt_state.run.attempts.last()) {
                trace.put(trace.attempt(&attempt_state.run, attempt), &mut headers);
            }
            headers.insert(names::ATTEMPT_TOKEN, token.as_str());
            headers
        }
        None => Headers::new(),
    };
    let job = &context.job;
    let left = context.deadline.saturating_duration_since(Instant::now());
    let deadline: Timestamp = now().plus(left);
    headers.insert(names::TENANT, job.tenant.as_str());
    headers.insert(names::QUEUE, job.queue.as_str());
    headers.insert(names::PRIORITY, job.priority.to_string());
    headers.insert(names::TYPE, job.job_type.as_str());
    headers.insert(names::MAX_ATTEMPTS, context.max_attempts.to_string());
    headers.insert(names::ATTEMPT_DEADLINE, deadline.to_string());
    headers
}

/// Reads a handler's reply by the contract (section 6). `started`: its start was published before the reply came.
fn outcome_of(reply: HandlerReply, policy: &TypePolicy, started: bool) -> Outcome {
    if let Some(what) = reply.unreadable {
        let said = reply.error.map(|error| message_of(&error, &reply.payload)).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(" (it failed: {said})"));
        return Outcome::failed(ErrorKind::Retryable, format!("the handler's reply cannot be read: {what}{said}"));
    }
    if let Some(wait) = reply.snooze {
        return Outcome::Snoozed(wait);
    }
    let Some(error) = reply.error else {
        return Outcome::Completed(record::keep(&reply.payload, reply.content_type.as_deref()));
    };
    if error.code == Some(429) && reply.retry_after.is_none() && reply.retryable.is_none() {
        return Outcome::Busy { started };
    }
    let by_code = || error.code.is_none_or(|code| is_retryable(code, policy));
    let retryable = reply.retryable.unwrap_or_else(by_code);
    let kind = if retryable { ErrorKind::Retryable } else { ErrorKind::Permanent };
    let message = message_of(&error, &reply.payload);
    Outcome::Failed { failure: Failure::new(kind, message), retry_after: reply.retry_after }
}

fn message_of(error: &ServiceError, payload: &[u8]) -> String {
    let said = String::from_utf8_lossy(payload);
    let code = error.code.map(|code| code.to_string());
    let text = Some(error.text.clone()).filter(|text| !text.is_empty());
    let said = Some(said.trim().to_owned()).filter(|said| !said.is_empty());
    code.into_iter().chain(text).chain(said).collect::<Vec<_>>().join(": ")
}

/// 4xx is the job's own fault and no attempt helps, except for the codes about time or load.
fn is_retryable(code: u16, policy: &TypePolicy) -> bool {
    if policy.permanent_codes.contains(&code) {
        return false;
    }
    policy.retryable_codes.contains(&code) || !(400..500).contains(&code) || matches!(code, 408 | 425 | 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl FnOnce(&mut HandlerReply)) -> String {
        let mut reply = HandlerReply::default();
        let policy = TypePolicy { retryable_codes: vec![409], permanent_codes: vec![501], ..TypePolicy::default() };
        change(&mut reply);
        match outcome_of(reply, &policy, false) {
            Outcome::Completed(_) => "completed".to_owned(),
            Outcome::Failed { failure, retry_after } => {
                format!("{:?} {} {retry_after:?}", failure.kind, failure.message)
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_decision_table_of_replies() {
        let service_error = |code, text: &str| Some(ServiceError { code, text: text.to_owned() });
        let error = |code: u16| move |reply: &mut HandlerReply| reply.error = service_error(Some(code), "no");
        assert_eq!(said(|_| ()), "completed");
        assert_eq!(said(error(422)), "Permanent 422: no None");
        for code in [408, 425, 500, 503, 200] {
            assert_eq!(said(error(code)), format!("Retryable {code}: no None"));
        }
        assert_eq!(said(error(409)), "Retryable 409: no None");
        assert_eq!(said(error(501)), "Permanent 501: no None");
        assert_eq!(said(error(429)), "Busy { started: false }");
        let later = |reply: &mut HandlerReply| {
            reply.error = service_error(Some(429), "slow down");
            reply.retry_after = Some(Duration::from_secs(30));
        };
        assert_eq!(said(later), "Retryable 429: slow down Some(30s)");
        let again = |reply: &mut HandlerReply| {
            reply.error = service_error(Some(422), "");
            reply.retryable = Some(true);
            reply.payload = Bytes::from_static(b"body");
        };
        assert_eq!(said(again), "Retryable 422: body None");
        assert_eq!(said(|reply| reply.error = service_error(None, "text alone")), "Retryable text alone None");
        let unreadable = |reply: &mut HandlerReply| {
            reply.error = service_error(Some(422), "no");
            reply.unreadable = Some("Longshore-Snoze is not a header of a reply".to_owned());
        };
        let says = "the handler's reply cannot be read: Longshore-Snoze is not a header of a reply";
        assert_eq!(said(unreadable), format!("Retryable {says} (it failed: 422: no) None"));
        assert_eq!(said(|reply| reply.hold = Some(Duration::from_secs(30))), "completed");
        assert_eq!(said(|reply| reply.snooze = Some(Duration::from_secs(300))), "Snoozed(300s)");
    }
}
