//! Which node holds a job: this node's questions to other nodes, and its answers to theirs.

use std::time::Duration;

use longshore_backbone::control::{PRESENCE_EVERY, Presence};
use longshore_backbone::holders::{HolderAnswer, HolderQuestion};
use longshore_domain::Run;
use longshore_domain::protocol::HolderStatus;

use crate::attempt::ports::Ports;
use crate::ports::Server as _;
use crate::runtime::log_run::{About, log_run};

/// How long a node has to answer whether it holds a job. If it takes longer, it is asked again with the next delivery.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The state of the node that the record of a running attempt names.
pub(crate) async fn ask<P: Ports>(ports: &P, run: &Run) -> HolderStatus {
    let (Some(node), Some(held_by)) = (&run.node, &run.held_by) else { return HolderStatus::Silent(None) };
    let writer = writer_of(&run.token);
    if *node == *ports.node() {
        return match ports.book().has(&held_by.message) {
            _ if writer != ports.writer() => HolderStatus::Gone,
            true => HolderStatus::Holds,
            false if ports.unclear_claims().take(&run.token) => HolderStatus::NeverStarted,
            false => HolderStatus::Silent(None),
        };
    }
    let question = HolderQuestion { message: held_by.message.clone(), token: run.token.clone() };
    match ports.server().ask_holder(node, &question, ANSWER_WITHIN).await {
        Some(answer) if answer.writer != writer => HolderStatus::Gone,
        Some(answer) if answer.holds => HolderStatus::Holds,
        Some(answer) if answer.never_started => HolderStatus::NeverStarted,
        Some(_) => HolderStatus::Silent(None),
        None => last_sign(ports, run, node).await,
    }
}

/// A node that does not answer has perhaps lost its connection for a moment: its last presence decides.
async fn last_sign<P: Ports>(ports: &P, run: &Run, node: &str) -> HolderStatus {
    let started_at = run.attempts.last().map(|attempt| attempt.started_at);
    // A start that is still to come was said by a clock that has been put back since, perhaps by this very process.
    let is_another =
        |presence: &Presence| Some(presence.started_at) > started_at && presence.started_at <= presence.seen_at;
    match ports.server().presence_of(node).await {
        Ok(Some(presence)) if is_another(&presence) => HolderStatus::Gone,
        // It counts as there until its next presence was due: it may have renewed leases after its last presence.
        Ok(presence) => HolderStatus::Silent(presence.map(|presence| presence.seen_at.plus(PRESENCE_EVERY))),
        Err(error) => {
            log_run!(debug, About::run(run), "cannot find out whether its holder lives: {}", error.with_causes());
            HolderStatus::Silent(Some(ports.now()))
        }
    }
}

pub(crate) fn answer_to<P: Ports>(ports: &P, asked: &HolderQuestion) -> HolderAnswer {
    let holds = ports.book().has(&asked.message);
    let never_started = !holds && ports.unclear_claims().take(&asked.token);
    HolderAnswer { writer: ports.writer().into(), holds, never_started }
}

/// The part of a record's token that names the process that wrote it.
fn writer_of(token: &str) -> &str {
    token.split_once('-').map_or(token, |(writer, _)| writer)
}
