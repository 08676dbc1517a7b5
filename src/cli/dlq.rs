//! `longshore dlq`: dead letters, listed, grouped by error, shown, replayed and discarded.

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    self, Change, DeadJob, DeadLetter, DiscardRequest, DlqDiscard, DlqGet, DlqGroups, DlqList, DlqReplay, Encoded,
    Group, Groups, GroupsRequest, ListRequest, Page, ReplayRequest, RunRequest, Selection, Target,
};
use longshore_domain::{Queue, Timestamp};
use serde_json::value::RawValue;

use super::bulk::{self, Bulk};
use super::client::Api;
use super::output::{self, ago, cut, number};
use super::target::{self, FilterOptions, Which};
use super::{Ended, Global, OneRun, Usage, exact, record, submit};

/// At most so many dead letters on a page of the API, or groups in its answer.
const PAGE: u64 = 500;
/// How long grouping may take: it reads every dead letter.
const GROUPING: std::time::Duration = std::time::Duration::from_secs(110);

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, the oldest first
    List(List),
    /// Group dead letters whose errors are alike, the largest group first
    Groups {
        #[command(flatten)]
        filter: FilterOptions,
        /// At most so many groups
        #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=PAGE))]
        limit: u64,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// One dead letter: its run with every attempt, its headers, its payload
    Get(OneRun),
    /// Run the jobs again: each run begins its next round, with its history
    Replay(Replay),
    /// Delete dead letters: their runs end as discarded
    Discard(Discard),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    filter: FilterOptions,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = super::target::some)]
    limit: u64,
    /// Continue where a list ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    discard: Discard,
    /// Into this queue
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>, help_heading = "Changes")]
    set_queue: Option<Queue>,
    /// With this priority
    #[arg(long, value_name = "1-9", value_parser = clap::value_parser!(u8).range(1..=9), help_heading = "Changes")]
    set_priority: Option<u8>,
    /// With this payload; - reads it from stdin
    #[arg(long, value_name = "JSON", help_heading = "Changes")]
    set_payload: Option<String>,
    /// With this header; NAME= removes it; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header, help_heading = "Changes")]
    set_header: Vec<(String, Option<String>)>,
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    which: Which,
    /// Of this group of `dlq groups`
    #[arg(long, value_name = "FINGERPRINT", help_heading = "Which runs")]
    fingerprint: Option<String>,
    /// So many per second, 0.001 or more
    #[arg(long, value_name = "NUMBER", value_parser = rate, help_heading = "How")]
    rate: Option<f64>,
    #[command(flatten)]
    options: bulk::Options,
}

pub(crate) async fn run(global: &Global, command: DlqCommand) -> anyhow::Result<Ended> {
    match command {
        DlqCommand::List(arguments) => list(&Api::connect(global).await?, arguments).await,
        DlqCommand::Groups { filter, limit, json } => {
            let asked = GroupsRequest { filter: filter.wanted(), limit: Some(limit), ..GroupsRequest::default() };
            Api::connect(global).await?.show_within::<DlqGroups>(asked, GROUPING, json, say_groups).await
        }
        DlqCommand::Get(OneRun { id, json }) => {
            let asked = RunRequest { run_id: id, tenant: None };
            let shown = |dead_letter: DeadLetter| output::say(show(&dead_letter).trim_end());
            Api::connect(global).await?.show::<DlqGet>(asked, json, shown).await
        }
        DlqCommand::Replay(arguments) => {
            // With a payload from stdin, nothing can be asked there.
            let set = arguments.set(submit::payload(arguments.set_payload.as_deref())?);
            let request = |selection| ReplayRequest { selection, rate_per_s: None, set };
            bulk_or_one::<DlqReplay>(global, arguments.discard, request).await
        }
        DlqCommand::Discard(arguments) => {
            let request = |selection| DiscardRequest { selection, rate_per_s: None };
            bulk_or_one::<DlqDiscard>(global, arguments, request).await
        }
    }
}

async fn bulk_or_one<E: Bulk>(
    global: &Global,
    arguments: Discard,
    request: impl FnOnce(Selection) -> E::Request,
) -> anyhow::Result<Ended> {
    let Discard { which, fingerprint, rate, options } = arguments;
    let target = which.chosen(api::Filter { fingerprint, ..api::Filter::default() })?;
    let is_one = matches!(target, Target::Run(_));
    if is_one && rate.is_some() {
        return Err(Usage("--rate is for filters and --all, not for one run by its id".to_owned()).into());
    }
    let request = request(Selection::of(target));
    let api = Api::connect(global).await?;
    if is_one {
        bulk::one::<E>(&api, request, &options).await
    } else {
        bulk::run::<E>(&api, request, rate, &options).await
    }
}

impl Replay {
    /// The changes to the jobs; `None` if there are none.
    fn set(&self, payload: Option<Box<RawValue>>) -> Option<Change> {
        let change = Change {
            queue: self.set_queue.as_ref().map(Queue::to_string),
            priority: self.set_priority.map(u64::from),
            payload,
            headers: self.set_header.iter().cloned().collect(),
        };
        let Change { queue, priority, payload, headers } = &change;
        let is_any = queue.is_some() || priority.is_some() || payload.is_some() || !headers.is_empty();
        is_any.then_some(change)
    }
}

fn header(text: &str) -> Result<(String, Option<String>), String> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("is not NAME=VALUE")?;
    Ok((name.to_owned(), Some(value.to_owned()).filter(|value| !value.is_empty())))
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate >= 0.001)
        .ok_or_else(|| "is not 0.001 or more".into())
}

async fn list(api: &Api, arguments: List) -> anyhow::Result<Ended> {
    let List { filter, limit, cursor, json } = arguments;
    let mut asked = ListRequest { filter: filter.wanted(), cursor, ..ListRequest::default() };
    let mut entries: Vec<Encoded<DeadLetter>> = Vec::new();
    loop {
        let left = limit.saturating_sub(entries.len() as u64);
        asked.limit = Some(left.min(PAGE));
        let page = api.ask_within::<DlqList>(asked.clone(), GROUPING).await?.dead_letters()?;
        entries.extend(page.entries);
        asked.cursor = page.cursor;
        if asked.cursor.is_none() || entries.len() as u64 >= limit {
            break;
        }
    }
    let page = Page { entries, cursor: asked.cursor };
    output::answer(&page, json, || {
        let dead_letters = page.entries.iter().map(Encoded::read).collect::<Result<Vec<_>, _>>()?;
        if dead_letters.is_empty() {
            eprintln!("no dead letters");
            return Ok(());
        }
        output::say_table(&rows(&dead_letters, target::now(), output::columns()), &[2, 3])?;
        if let Some(cursor) = &page.cursor {
            eprintln!("more: --cursor {} continues, --limit shows more at once", cut(cursor, 100));
        }
        Ok(())
    })
}

fn rows(dead_letters: &[DeadLetter], now: Timestamp, columns: usize) -> Vec<Vec<String>> {
    let row = |DeadLetter { record, .. }: &DeadLetter| {
        let tenant = Some(record.tenant.as_str()).filter(|tenant| *tenant != "default");
        let tenant = tenant.map(|tenant| format!("{tenant}/")).unwrap_or_default();
        let round = if record.round > 1 { format!(", round {}", record.round) } else { String::new() };
        let error = record.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message));
        [
            format!("{tenant}{}", record.run_id),
            cut(record.job_type.as_str(), columns / 4),
            record.ended_at.map(|ended| ago(ended, now)).unwrap_or_default(),
            format!("{}{round}", record.attempt.unwrap_or(0)),
            error.unwrap_or_default(),
        ]
    };
    let heading = ["run", "type", "died", "attempts", "error"];
    output::fitted(output::rows(heading, dead_letters.iter().map(row)), columns, &[3])
}

fn say_groups(Groups { groups, cursor }: Groups) -> anyhow::Result<()> {
    if groups.is_empty() {
        eprintln!("no dead letters");
        return Ok(());
    }
    let rows = group_rows(&groups, target::now(), output::columns());
    output::say_with_hidden(&rows, &fitted_groups(&rows, output::columns()), &[1, 3, 4])?;
    if cursor.is_some() {
        eprintln!("there are so many dead letters that only the oldest were grouped; --since groups newer ones");
    }
    eprintln!("dlq replay --fingerprint GROUP runs those of a group again, dlq discard deletes them");
    Ok(())
}

fn group_rows(groups: &[Group], now: Timestamp, columns: usize) -> Vec<Vec<String>> {
    let row = |group: &Group| {
        [
            cut(&group.fingerprint, 16),
            number(group.count),
            cut(group.job_type.as_str(), columns / 4),
            ago(group.first, now),
            ago(group.last, now),
            cut(group.example.run_id.as_str(), columns.max(120) / 3),
            format!("{}: {}", group.error_kind, group.pattern),
        ]
    };
    let heading = ["group", "dead letters", "type", "first", "last", "for example", "error"];
    output::rows(heading, groups.iter().map(row))
}

/// Of a group its error says most.
fn fitted_groups(rows: &[Vec<String>], columns: usize) -> Vec<Vec<String>> {
    output::with_wrapped_last(output::narrowed(rows.to_vec(), columns, &[3, 5]), columns)
}

/// A dead letter for people: its run, then the job as it was published.
fn show(dead_letter: &DeadLetter) -> String {
    let DeadLetter { record, job } = dead_letter;
    let mut shown = record::show(record, target::now());
    shown += "\n";
    shown += &output::field("alike", &cut(&job.fingerprint, 100));
    for (name, value) in &job.headers {
        shown += &output::field("header", &format!("{}: {}", cut(name, 100), cut(value, 200)));
    }
    shown + &output::field("payload", &payload(job))
}

/// The payload in its most readable form: formatted JSON, else text, else its size.
fn payload(job: &DeadJob) -> String {
    if let Some(bytes) = job.payload_bytes {
        return format!("left out, it had {} bytes; replay it with --set-payload", number(bytes));
    }
    let encoded = job.payload_base64.as_deref().unwrap_or_default();
    match encoded {
        "" => "none".to_owned(),
        encoded => output::plain(&exact::laid_out(&record::decoded(encoded))),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use clap::Parser as _;

    use serde_json::{Value, json};

    use super::super::{Cli, Command, Noun};
    use super::*;

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap()
    }

    fn table(rows: &[Vec<String>], right: &[usize]) -> String {
        anstream::adapter::strip_str(&output::table(rows, right)).to_string()
    }

    #[test]
    fn dead_letters_fit_a_hundred_columns() {
        let entry = |run: &str, message: &str, round: u64| -> DeadLetter {
            let dead_letter = json!({"run_id": run, "tenant": "default", "queue": "main", "priority": 5, "type": "email.send",
                "state": "dead", "round": round, "attempt": 12, "max_attempts": 12, "fingerprint": "f", "headers": {},
                "ended_at": "2026-11-21T11:55:00.000Z", "error": {"kind": "retryable", "message": message}});
            serde_json::from_str(&dead_letter.to_string()).unwrap()
        };
        let entries = [entry("main-p5-7", "no route\u{1b}[2J", 1), entry("main-p5-12345", &"long ".repeat(100), 2)];
        let shown = table(&rows(&entries, now(), 100), &[2, 3]);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        let (head, rest) = shown.split_at(shown.find("long").unwrap());
        assert_eq!(
            head,
            "\
run            type             died     attempts  error
main-p5-7      email.send  5 min ago           12  retryable: no route [2J
main-p5-12345  email.send  5 min ago  12, round 2  retryable: "
        );
        assert!(rest.ends_with("…\n"), "{rest}");
    }

    #[test]
    fn groups_show_count_times_and_error() {
        let groups =
            [json!({"fingerprint": "f", "type": "email.send", "error_kind": "timeout", "pattern": "after # ms",
            "count": 12_345, "first": "2026-11-18T12:00:00Z", "last": "2026-11-21T11:59:30Z",
            "example": {"run_id": "main-p5-7", "tenant": "default", "error": null}})];
        let groups: [Group; 1] = groups.map(|group| serde_json::from_value(group).unwrap());
        assert_eq!(
            table(&fitted_groups(&group_rows(&groups, now(), 100), 100), &[1, 3, 4]),
            "\
group  dead letters  type          first      last  for example  error
f            12,345  email.send  3 d ago  30 s ago  main-p5-7    timeout: after # ms
"
        );
    }

    #[test]
    fn a_payload_is_shown_in_its_most_readable_form() {
        let job = |payload_base64: Option<String>, payload_bytes: Option<u64>| {
            let (headers, fingerprint) = (std::collections::BTreeMap::new(), "f".to_owned());
            payload(&DeadJob { headers, payload_base64, payload_bytes, fingerprint })
        };
        let encoded = |bytes: &[u8]| job(Some(base64::engine::general_purpose::STANDARD.encode(bytes)), None);
        assert_eq!(encoded(b"{\"a\":1}"), "{\n  \"a\": 1\n}");
        assert_eq!(encoded(b"hello\x1b[2J"), "hello[2J");
        assert_eq!(encoded(&[0xff, 0xfe]), "2 bytes that are not text; --json has them");
        assert_eq!(encoded(b""), "none");
        assert!(job(None, Some(2_000_000)).starts_with("left out, it had 2,000,000 bytes"));
    }

    #[test]
    fn the_changes_of_a_replay_are_read() {
        let line = "longshore dlq replay --type a --set-queue bulk --set-priority 2 --set-payload [1] \
                    --set-header X-A=b=c --set-header X-B= --rate 2.5 --limit 3 --yes";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Dlq(Noun { command: Some(DlqCommand::Replay(replay)), .. }) = cli.command else {
            panic!("not replay")
        };
        let set = replay.set(submit::payload(replay.set_payload.as_deref()).unwrap());
        let expected = json!({"queue": "bulk", "priority": 2, "payload": [1], "headers": {"X-A": "b=c", "X-B": null}});
        let set: Value = serde_json::to_value(set).unwrap();
        assert_eq!((set, replay.discard.rate), (expected, Some(2.5)));
        for (line, reason) in [
            ("longshore dlq replay --all --rate 0", "0.001 or more"),
            ("longshore dlq replay --all --set-header X", "NAME=VALUE"),
            ("longshore dlq replay r --all", "cannot be used with"),
            ("longshore dlq list --error-kind odd", "lease_expired"),
            ("longshore dlq discard --all --set-queue main", "unexpected argument"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
