//! `longshore runs list` and `longshore runs count`: runs by what they have in common, page after page.

use std::collections::BTreeMap;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use longshore_backbone::wire::api::{
    self, Count, CountRequest, Counts, Encoded, ListRequest, Record, Runs, RunsCount, RunsList, RunsRequest,
};
use longshore_domain::{JobType, Queue, RunState, Timestamp};
use serde_json::json;

use super::Ended;
use super::client::Api;
use super::output::{self, age, cut, number};
use super::target::{self, FilterOptions, word};

/// At most so many runs on a page of the API.
const PAGE: u64 = 500;

/// Which runs.
#[derive(Debug, Args)]
pub(crate) struct RunSelection {
    #[command(flatten)]
    filter: FilterOptions,
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(RunState::NAMES).try_map(word::<RunState>), help_heading = "Which runs")]
    state: Option<RunState>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    wanted: RunSelection,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = super::target::some)]
    limit: u64,
    /// All of them, page after page
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Continue where a list ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    /// JSON for machines; with --all one run per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Counting {
    #[command(flatten)]
    wanted: RunSelection,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl RunSelection {
    fn filter(self) -> api::Filter {
        api::Filter { state: self.state, ..self.filter.wanted() }
    }
}

/// `longshore runs list`
pub(crate) async fn list(api: &Api, arguments: List) -> anyhow::Result<Ended> {
    let List { wanted, limit, all, cursor, json } = arguments;
    let mut asked = ListRequest { filter: wanted.filter(), cursor, ..ListRequest::default() };
    let mut runs: Vec<Encoded<Record>> = Vec::new();
    let (mut printed, mut unreadable) = (0, 0);
    loop {
        let left = if all { PAGE } else { limit - runs.len() as u64 };
        asked.limit = Some(left.min(PAGE));
        let page = api.ask::<RunsList>(RunsRequest::Those(asked.clone())).await?.records()?;
        runs.extend(page.runs);
        unreadable += page.unreadable;
        asked.cursor = page.cursor;
        if all {
            // Nothing is kept, however many there are.
            print(&runs, json, printed == 0)?;
            printed += runs.len();
            runs.clear();
        }
        if asked.cursor.is_none() || (!all && runs.len() as u64 >= limit) {
            break;
        }
    }
    let cursor = asked.cursor;
    name_left_out(unreadable);
    match json {
        true if all => {}
        true => output::json(&Runs { runs, cursor, complete: None, searched_until: None, unreadable })?,
        false if printed + runs.len() == 0 => eprintln!("no runs"),
        false => {
            print(&runs, false, true)?;
            if let Some(cursor) = cursor {
                eprintln!("more: --cursor {} continues, --all shows all", cut(&cursor, 200));
            }
        }
    }
    Ok(Ended::Success)
}

/// Says how many records were left out.
fn name_left_out(unreadable: u64) {
    if unreadable > 0 {
        eprintln!("{unreadable} records cannot be read and were left out: `longshore health` names them");
    }
}

fn print(runs: &[Encoded<Record>], json: bool, with_heading: bool) -> anyhow::Result<()> {
    if json {
        return runs.iter().try_for_each(output::json);
    }
    if runs.is_empty() {
        return Ok(());
    }
    let records = runs.iter().map(Encoded::read).collect::<Result<Vec<_>, _>>()?;
    let table = output::table(&rows(&records, target::now(), output::columns()), &[3, 4]);
    let (_, without_heading) = table.split_once('\n').unwrap_or_default();
    output::say(if with_heading { table.trim_end() } else { without_heading.trim_end() })
}

/// The columns of the state and of a short note, with the gaps before them.
const STATE_AND_NOTE: usize = 2 + 2 + 9 + 2 + 12;
const SHORTEST_TYPE: usize = 8;

fn rows(records: &[Record], now: Timestamp, columns: usize) -> Vec<Vec<String>> {
    let id = |record: &Record| {
        let tenant = Some(record.tenant.as_str()).filter(|tenant| *tenant != "default");
        let tenant = tenant.map(|tenant| format!("{tenant}/")).unwrap_or_default();
        format!("{tenant}{}", cut(record.run_id.as_str(), columns.max(120) / 3))
    };
    let longest = records.iter().map(|record| id(record).chars().count()).max().unwrap_or(0);
    // An id must be whole to be of use: in a narrow terminal the type yields to it, the state and what is said of it.
    let of_type = columns.saturating_sub(longest + STATE_AND_NOTE).clamp(SHORTEST_TYPE, columns.max(80) / 4);
    let row = |record: &Record| {
        let round = if record.round > 1 { format!(", round {}", record.round) } else { String::new() };
        let since = record.ended_at.or(record.started_at).or(record.enqueued_at);
        [
            id(record),
            output::shortened(&cut(record.job_type.as_str(), 128), of_type),
            cut(&record.state.to_string(), 20),
            record.attempt.map(|attempt| format!("{attempt} of {}{round}", record.max_attempts)).unwrap_or_default(),
            since.map(|since| age(since, now)).unwrap_or_default(),
            format!("{} p{}", record.queue, record.priority.number()),
            note(record, now),
        ]
    };
    let heading = ["run", "type", "state", "attempt", "for", "queue", ""];
    output::fitted(output::rows(heading, records.iter().map(row)), columns, &[5, 3, 4])
}

/// What is to be said of a run beside its state.
fn note(record: &Record, now: Timestamp) -> String {
    let due = record.run_at.filter(|at| record.ended_at.is_none() && *at > now);
    let due = due.map(|at| format!("due in {}", age(now, at)));
    let of = record.duplicate_of.as_ref().map(|of| format!("of {of}"));
    let is_well = record.state == RunState::Completed.into();
    let error = record.error.as_ref().filter(|_| !is_well).map(|error| format!("{}: {}", error.kind, error.message));
    [due, of, error].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// `longshore runs count`
pub(crate) async fn count(api: &Api, arguments: Counting) -> anyhow::Result<Ended> {
    let Counting { wanted, json } = arguments;
    let asked = CountRequest { filter: wanted.filter(), ..CountRequest::default() };
    let mut left_out = 0;
    let counts = api.all::<RunsCount, _>(
        |cursor| CountRequest { cursor, ..asked.clone() },
        |Counts { cursor, counts, unreadable }| {
            left_out += unreadable;
            (counts, cursor)
        },
    );
    let mut all: BTreeMap<(Queue, JobType, String), Count> = BTreeMap::new();
    for count in counts.await? {
        let group = (count.queue.clone(), count.job_type.clone(), count.state.to_string());
        all.entry(group).and_modify(|sum| sum.count += count.count).or_insert(count);
    }
    name_left_out(left_out);
    let total: u64 = all.values().map(|count| count.count).sum();
    if json {
        let counts: Vec<&Count> = all.values().collect();
        output::json(&json!({"counts": counts, "total": total}))?;
    } else if all.is_empty() {
        eprintln!("no runs");
    } else {
        output::say_table(&count_rows(all.values(), total, output::columns()), &[3])?;
    }
    Ok(Ended::Success)
}

fn count_rows<'c>(counts: impl Iterator<Item = &'c Count>, total: u64, columns: usize) -> Vec<Vec<String>> {
    let row = |count: &Count| {
        let state = cut(&count.state.to_string(), 20);
        [count.queue.to_string(), cut(count.job_type.as_str(), columns / 3), state, number(count.count)]
    };
    let sum = [String::new(), String::new(), "in all".to_owned(), number(total)];
    output::rows(["queue", "type", "state", "runs"], counts.map(row).chain([sum]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rows: &[Vec<String>], right: &[usize]) -> String {
        anstream::adapter::strip_str(&output::table(rows, right)).to_string()
    }

    #[test]
    fn runs_fit_a_hundred_columns() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let run = |more: serde_json::Value| -> Record {
            let mut record = json!({"run_id": "main-p5-7", "tenant": "default", "queue": "main", "priority": 5,
                "type": "email.send", "round": 1, "max_attempts": 12, "enqueued_at": "2026-11-21T11:55:00.000Z"});
            record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_str(&record.to_string()).unwrap()
        };
        let error = json!({"kind": "retryable", "message": format!("no route\u{1b}[2J {}", "long ".repeat(50))});
        let runs = [
            run(json!({"state": "completed", "attempt": 1, "ended_at": "2026-11-21T11:59:48.000Z"})),
            run(json!({"state": "retrying", "attempt": 2, "run_at": "2026-11-21T12:05:00Z", "error": error})),
            run(json!({"state": "enqueued", "tenant": "acme"})),
        ];
        let table = shown(&rows(&runs, now, 100), &[3, 4]);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        let (head, rest) = table.split_at(table.find("no route").unwrap());
        assert_eq!(
            head,
            "\
run             type        state      attempt    for  queue
main-p5-7       email.send  completed  1 of 12   12 s  main p5
main-p5-7       email.send  retrying   2 of 12  5 min  main p5  due in 5 min; retryable: "
        );
        let long = [
            run(
                json!({"state": "enqueued", "type": "billing.invoice.send_reminder", "run_at": "2026-11-21T12:29:00Z"}),
            ),
            run(json!({"state": "scheduled", "run_id": "01a21093-eb40-7113-81f3-014a0ad915a2"})),
        ];
        let narrow = shown(&rows(&long, now, 80), &[3, 4]);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("01a21093-eb40-7113-81f3-014a0ad915a2") && narrow.contains("due in 29 m"), "{narrow}");
        assert!(rest.ends_with("acme/main-p5-7  email.send  enqueued            5 min  main p5\n"), "{rest}");
    }

    #[test]
    fn counts_have_a_sum() {
        let count = |state: RunState, count| Count {
            count,
            queue: Queue::main(),
            state: state.into(),
            job_type: JobType::parse("email.send").unwrap(),
        };
        let counts = [count(RunState::Completed, 12_345), count(RunState::Dead, 5)];
        assert_eq!(
            shown(&count_rows(counts.iter(), 12_350, 100), &[3]),
            "\
queue  type        state        runs
main   email.send  completed  12,345
main   email.send  dead            5
                   in all     12,350
"
        );
    }

    #[test]
    fn the_states_are_the_contracts() {
        for state in RunState::NAMES {
            assert_eq!(word::<RunState>(state.to_owned()).unwrap().as_str(), state);
        }
    }
}
