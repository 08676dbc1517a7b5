//! `longshore queues`: waiting and running jobs of each queue; puts queues, pauses and resumes queues and types, purges
//! queues.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    NoHandler, PauseRequest, PauseStatus, PurgeRequest, PutQueueRequest, QueuePut, QueueShare, QueueShares,
    QueueStatus, Queues, QueuesList, QueuesPause, QueuesPurge, QueuesPut, QueuesRequest, QueuesResume, QueuesShares,
    ResumeRequest, SharesRequest,
};
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::run::whole_millis;
use longshore_domain::served::none_ever;
use longshore_domain::{DurationText, JobType, Queue, SmolStr, Timestamp, duration};

use super::client::Api;
use super::output::{self, GOOD, PENDING, number};
use super::target::{now, word};
use super::{Ended, Global, Json, bulk};

/// How long a pause may take beside the usual time for an answer: until silent nodes start nothing any more.
pub(crate) const PAUSES_WITHIN: Duration = Duration::from_secs(20);
/// How long putting a queue may take beside it: its streams may wait for an election.
const PUT_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// The queues, with their waiting and running jobs: what the command shows without a subcommand
    List(Json),
    /// How the starts of a queue are shared out between tenants, or types, beside what each is owed (operators)
    Shares {
        /// The queue
        #[arg(value_name = "QUEUE", value_parser = super::name::<Queue>)]
        queue: Queue,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Declare a queue on the running cluster, or have it served otherwise; it outlasts restarts (operators)
    Put {
        /// The queue
        #[arg(value_name = "QUEUE", value_parser = super::name::<Queue>)]
        queue: Queue,
        /// How many of its jobs run at once on each node, 1 to 10000 [default: 64]
        #[arg(long, value_name = "NUMBER")]
        concurrency: Option<usize>,
        /// How much later a job of the next more urgent priority may come and still overtake; 0s: strict priorities
        /// [default: 30s]
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        aging: Option<Duration>,
        /// Between whom its starts are shared out while jobs of several wait
        #[arg(long, value_name = "WHOM", default_value = "tenant", value_parser = PossibleValuesParser::new(whom()).try_map(word::<FairBy>))]
        fair_by: FairBy,
        /// A node that serves it; may be repeated [default: every node]
        #[arg(long = "node", value_name = "NAME", conflicts_with = "no_node")]
        nodes: Vec<SmolStr>,
        /// No node serves it, but those whose configuration names it
        #[arg(long)]
        no_node: bool,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Pause a queue or a type on all nodes: nothing starts any more, what runs goes on (operators)
    Pause {
        #[command(flatten)]
        which: WhichQueue,
        /// When it ends by itself, for example 2027-01-31T09:30:00Z
        #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, conflicts_with = "lasts")]
        until: Option<Timestamp>,
        /// After how long it ends by itself, for example 30m
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
        lasts: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// End a pause (operators)
    Resume {
        #[command(flatten)]
        which: WhichQueue,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Cancel every run of a queue whose attempt does not run: waiting, delayed and between two attempts, of all
    /// tenants (operators)
    Purge {
        /// The queue
        #[arg(value_name = "QUEUE", value_parser = super::name::<Queue>)]
        queue: Queue,
        #[command(flatten)]
        options: bulk::Options,
    },
}

#[derive(Debug, Args)]
#[group(required = true)]
pub(crate) struct WhichQueue {
    /// The queue; with --type only the jobs of that type in it
    #[arg(value_name = "QUEUE", value_parser = super::name::<Queue>)]
    queue: Option<Queue>,
    /// The job type, for example email.send
    #[arg(long = "type", value_name = "TYPE", value_parser = super::name::<JobType>)]
    job_type: Option<JobType>,
}

/// The words of [`FairBy`].
fn whom() -> [PossibleValue; 2] {
    let (tenant, job_type) = (PossibleValue::new("tenant"), PossibleValue::new("type"));
    [tenant.help("The tenants that have jobs, by their weight"), job_type.help("The types of jobs, by their weight")]
}

pub(crate) async fn run(global: &Global, command: QueuesCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        QueuesCommand::Put { queue, concurrency, aging, fair_by, nodes, no_node, json } => {
            let nodes = (no_node || !nodes.is_empty()).then_some(nodes);
            let aging_ms = aging.map(whole_millis);
            let request = PutQueueRequest { queue, concurrency, aging_ms, nodes, fair_by };
            let shown = |put: QueuePut| output::say_changed(&put_said(&put), &put.unconfirmed);
            api.show_within::<QueuesPut>(request, PUT_WITHIN, json, shown).await
        }
        QueuesCommand::Pause { which: WhichQueue { queue, job_type }, until, lasts, json } => {
            let until = until.or_else(|| lasts.map(|lasts| now().plus(lasts)));
            let request = PauseRequest { queue, job_type, until };
            api.show_within::<QueuesPause>(request, PAUSES_WITHIN, json, show_pause).await
        }
        QueuesCommand::Resume { which: WhichQueue { queue, job_type }, json } => {
            api.show::<QueuesResume>(ResumeRequest { queue, job_type }, json, show_pause).await
        }
        QueuesCommand::Purge { queue, options } => {
            let request = PurgeRequest { confirm: Some(queue.clone()), queue, limit: None, dry_run: false };
            bulk::run::<QueuesPurge>(&api, request, None, &options).await
        }
        QueuesCommand::Shares { queue, json } => {
            api.show::<QueuesShares>(SharesRequest { queue }, json, show_shares).await
        }
        QueuesCommand::List(Json { json }) => api.show::<QueuesList>(QueuesRequest::default(), json, show_list).await,
    }
}

fn show_shares(QueueShares { fair_by, left_out, shares, .. }: QueueShares) -> anyhow::Result<()> {
    let whose = if fair_by == FairBy::Type { "type" } else { "tenant" };
    let rows = output::rows([whose, "jobs", "weight", "share", "a second"], shares.into_iter().map(share));
    output::say_fitted(&rows, &[1, 2, 3, 4], &[])?;
    if left_out > 0 {
        eprintln!("{left_out} more have jobs in it");
    }
    Ok(())
}

fn share(QueueShare { whose, jobs, weight, share, delivered }: QueueShare) -> [String; 5] {
    let whose = match whose {
        FairnessKey::Tenant(tenant) => tenant.to_string(),
        FairnessKey::Type(job_type) => job_type.to_string(),
    };
    [whose, number(jobs), weight.to_string(), format!("{:.1} %", share * 100.0), number(delivered)]
}

/// A queue that was put, in one line.
fn put_said(put: &QueuePut) -> String {
    let aging = DurationText(Duration::from_millis(put.aging_ms));
    let fair = if put.fair_by == FairBy::Type { ", fair by type" } else { "" };
    let how = format!("concurrency {}, aging {aging}{fair}", put.concurrency);
    let by = match put.served_by.as_slice() {
        [] => format!("{PENDING}served by no node{PENDING:#}"),
        nodes => format!("{GOOD}served by {}{GOOD:#}", nodes.join(" ")),
    };
    format!("{}: {how}, {by}", put.queue)
}

fn show_pause(status: PauseStatus) -> anyhow::Result<()> {
    output::say(&said(&status, now()))?;
    if let Some(warning) = &status.warning {
        anstream::eprintln!("{PENDING}warning:{PENDING:#} {}", output::cut(&output::plain(warning), 400));
    }
    Ok(())
}

/// A pause, or its end, in one line.
fn said(status: &PauseStatus, now: Timestamp) -> String {
    let what = match (&status.queue, &status.job_type) {
        (Some(queue), Some(job_type)) => format!("{job_type} in {queue}"),
        (Some(queue), None) => queue.to_string(),
        (None, job_type) => job_type.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    match (status.paused, status.since, status.until) {
        (true, _, Some(until)) => {
            format!("{what}: {PENDING}paused{PENDING:#} until {}", output::moment(until, now))
        }
        (true, ..) => format!("{what}: {PENDING}paused{PENDING:#}"),
        (false, Some(since), _) => format!("{what}: {GOOD}resumed{GOOD:#}, paused for {}", output::span(since, now)),
        (false, None, _) => format!("{what}: was not paused"),
    }
}

fn show_list(queues: Queues) -> anyhow::Result<()> {
    output::say_fitted(&rows(&queues), &[1, 2, 3, 4, 5, 6], &[7, 8])?;
    for warning in warnings(&queues, now()) {
        anstream::eprintln!("{PENDING}warning:{PENDING:#} {warning}");
    }
    Ok(())
}

fn rows(answer: &Queues) -> Vec<Vec<String>> {
    let heading =
        ["queue", "waiting", "running", "scheduled", "retrying", "deferred", "oldest", "by priority", "served by", ""];
    output::rows(heading, answer.queues.iter().map(row))
}

/// Jobs of a queue that have not begun.
pub(crate) fn waiting(queue: &QueueStatus) -> u64 {
    queue.waiting.values().sum()
}

/// Jobs of a queue that could not start; `None`: not known yet.
pub(crate) fn deferred(queue: &QueueStatus) -> Option<u64> {
    queue.deferred.as_ref().map(|reasons| reasons.values().sum())
}

fn row(queue: &QueueStatus) -> [String; 10] {
    let lanes = queue.waiting.iter().filter(|(_, waiting)| **waiting > 0);
    let lanes = lanes.map(|(name, waiting)| format!("{} {}", output::cut(name, 20), number(*waiting)));
    let paused = queue.paused_types.iter().map(|paused| format!("{} paused", paused.job_type));
    let state = match (queue.paused, queue.served) {
        (true, _) => Some("paused".to_owned()),
        (false, false) => Some("not served".to_owned()),
        (false, true) => None,
    };
    let or_unknown = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), number);
    [
        queue.queue.to_string(),
        number(waiting(queue)),
        number(queue.running),
        or_unknown(queue.scheduled),
        or_unknown(queue.retrying),
        or_unknown(deferred(queue)),
        queue.oldest_ms.get("waiting").copied().map(output::took).unwrap_or_default(),
        lanes.collect::<Vec<_>>().join("  "),
        output::cut(&queue.served_by.join(" "), 40),
        state.into_iter().chain(paused).collect::<Vec<_>>().join(", "),
    ]
}

/// What keeps jobs from being done: queues without node, types without handler.
pub(crate) fn warnings(answer: &Queues, now: Timestamp) -> Vec<String> {
    let unserved = answer.queues.iter().filter(|queue| !queue.served && waiting(queue) > 0);
    let unserved = unserved.map(|queue| format!("jobs wait in {} and no node serves it", queue.queue));
    let no_handler = answer.no_handler.iter().map(|missing| without_handler(missing, now));
    unserved.chain(no_handler).collect()
}

fn without_handler(missing: &NoHandler, now: Timestamp) -> String {
    let NoHandler { job_type, jobs, since, subject, .. } = missing;
    let jobs = match jobs {
        0 => String::new(),
        1 => ", 1 job waits".to_owned(),
        jobs => format!(", {} jobs wait", number(*jobs)),
    };
    let never = never_served(missing).map_or_else(String::new, |never| format!("; {never}"));
    format!("no handler for {job_type} for {}{jobs}; handlers subscribe to {subject}{never}", output::age(*since, now))
}

/// That no handler was ever online, if that is so, and which type may be meant.
pub(crate) fn never_served(missing: &NoHandler) -> Option<String> {
    missing.never_served.then(|| none_ever(missing.did_you_mean.as_ref()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pause_says_what_it_is_about_and_when_it_ends() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let shown = |status: serde_json::Value| {
            let status: PauseStatus = serde_json::from_value(status).unwrap();
            anstream::adapter::strip_str(&said(&status, now)).to_string()
        };
        assert_eq!(shown(json!({"paused": true, "queue": "main", "since": "2026-11-21T12:00:00Z"})), "main: paused");
        assert_eq!(
            shown(json!({"paused": true, "queue": "main", "type": "call", "until": "2026-11-21T12:05:00Z"})),
            "call in main: paused until 2026-11-21T12:05:00.000Z (in 5 min)"
        );
        assert_eq!(
            shown(json!({"paused": false, "type": "call", "since": "2026-11-21T11:59:00Z"})),
            "call: resumed, paused for 1 min 0 s"
        );
        assert_eq!(shown(json!({"paused": false, "type": "call"})), "call: was not paused");
    }

    #[test]
    fn a_put_queue_says_how_and_by_whom_it_is_served() {
        let mut put = QueuePut {
            aging_ms: 30_000,
            concurrency: 8,
            fair_by: FairBy::Tenant,
            nodes: None,
            queue: Queue::parse("bulk").unwrap(),
            served_by: vec!["n1".to_owned(), "n2".to_owned()],
            unconfirmed: Vec::new(),
        };
        let shown = |put: &QueuePut| anstream::adapter::strip_str(&put_said(put)).to_string();
        assert_eq!(shown(&put), "bulk: concurrency 8, aging 30s, served by n1 n2");
        (put.aging_ms, put.fair_by, put.served_by) = (0, FairBy::Type, Vec::new());
        assert_eq!(shown(&put), "bulk: concurrency 8, aging 0s, fair by type, served by no node");
    }

    #[test]
    fn queues_are_shown_with_what_waits_and_what_keeps_it() {
        let queue = |name: &str, waiting: serde_json::Value, running: u64, served_by: &[&str]| {
            json!({"queue": name, "concurrency": 64, "depth": 0, "depths": {}, "oldest_age_ms": null, "waiting": waiting,
                "running": running, "paused": false, "served": !served_by.is_empty(), "served_by": served_by})
        };
        let mut main = queue("main", json!({"p1": 2, "p2": 0, "p5": 1_192}), 8, &["n1", "n2"]);
        main["oldest_ms"] = json!({"waiting": 65_000, "scheduled": 1});
        (main["scheduled"], main["retrying"]) = (json!(3), json!(4));
        main["deferred"] = json!({"no_handler_online": 5, "busy": 1});
        let bulk = queue("bulk", json!({"p5": 1}), 0, &[]);
        let mut idle = queue("idle", json!({}), 0, &["n1"]);
        idle["paused_types"] = json!([{"type": "call"}]);
        let answer = json!({"queues": [main, bulk, idle], "no_handler": [
            {"tenant": "acme", "type": "mail", "jobs": 200, "since": "2026-11-21T11:58:00Z", "looked_at": "2026-11-21T12:00:00Z",
             "subject": "longshore.work.acme.mail"},
            {"tenant": "acme", "type": "mial", "jobs": 1, "since": "2026-11-21T11:58:00Z", "looked_at": "2026-11-21T12:00:00Z",
             "subject": "longshore.work.acme.mial", "never_served": true, "did_you_mean": "mail"},
        ]});
        let answer: Queues = serde_json::from_value(answer).unwrap();
        let table = output::table(&rows(&answer), &[1, 2, 3, 4, 5, 6]);
        assert_eq!(
            anstream::adapter::strip_str(&table).to_string(),
            "\
queue  waiting  running  scheduled  retrying  deferred     oldest  by priority     served by
main     1,194        8          3         4         6  1 min 5 s  p1 2  p5 1,192  n1 n2
bulk         1        0          ?         ?         ?             p5 1                       not served
idle         0        0          ?         ?         ?                             n1         call paused
"
        );
        assert_eq!(
            warnings(&answer, Timestamp::parse("2026-11-21T12:00:00Z").unwrap()),
            [
                "jobs wait in bulk and no node serves it",
                "no handler for mail for 2 min, 200 jobs wait; handlers subscribe to longshore.work.acme.mail",
                "no handler for mial for 2 min, 1 job waits; handlers subscribe to longshore.work.acme.mial; none was ever \
                 online, did you mean mail?",
            ]
        );
    }
}
