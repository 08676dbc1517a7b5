//! `longshore dlq`: dead letters, listed, grouped by what they failed of, shown, run again, thrown away.

use base64::Engine as _;
use clap::{Args, Subcommand};
use longshore_domain::Timestamp;
use serde_json::{Map, Value, json};

use super::bulk::{self, Work};
use super::client::Api;
use super::output::{self, FAINT, age, cut, number, styled, text};
use super::which::{self, Chosen, Filter, Which};
use super::{Ended, Global, Usage, exact, runs, submit};

/// Most letters on a page of the API.
const PAGE: u64 = 500;
/// What groups may take: every letter is read for them.
const GROUPING: std::time::Duration = std::time::Duration::from_secs(110);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The letters, the oldest first
    List(List),
    /// What they failed of: letters whose errors are alike, the largest group first
    Groups {
        #[command(flatten)]
        filter: Filter,
        /// So many groups at most
        #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// One letter: its run with every attempt, its headers, its payload
    Get {
        /// The run's id
        id: String,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Run them again: each begins its next round, with its history
    Replay(Replay),
    /// Throw them away: their runs end as discarded
    Discard(Discard),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    filter: Filter,
    /// So many at most
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Go on where a list ended
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
    #[arg(long, value_name = "NAME", value_parser = super::token, help_heading = "Changes")]
    set_queue: Option<String>,
    /// With this priority
    #[arg(long, value_name = "1-9", value_parser = clap::value_parser!(u8).range(1..=9), help_heading = "Changes")]
    set_priority: Option<u8>,
    /// With this payload; - reads it from stdin
    #[arg(long, value_name = "JSON", help_heading = "Changes")]
    set_payload: Option<String>,
    /// With this header; NAME= takes it away; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header, help_heading = "Changes")]
    set_header: Vec<(String, Option<String>)>,
}

#[derive(Debug, Args)]
pub(crate) struct Discard {
    #[command(flatten)]
    which: Which,
    /// So many a second, 0.001 or more
    #[arg(long, value_name = "NUMBER", value_parser = rate, help_heading = "How")]
    rate: Option<f64>,
    #[command(flatten)]
    options: bulk::Options,
}

pub(crate) async fn run(global: &Global, command: Command) -> anyhow::Result<Ended> {
    match command {
        Command::List(arguments) => list(&Api::connect(global).await?, arguments).await,
        Command::Groups { filter, limit, json } => {
            let mut body = filter.fields();
            body.insert("limit".to_owned(), json!(limit));
            let api = Api::connect(global).await?;
            groups(&api.ask_patiently("dlq.groups", Value::Object(body), GROUPING).await?, json)
        }
        Command::Get { id, json } => {
            let letter = Api::connect(global).await?.ask("dlq.get", json!({"run_id": id})).await?;
            if json {
                output::json(&letter)?
            } else {
                output::say(show(&letter).trim_end())?
            }
            Ok(Ended::Well)
        }
        Command::Replay(arguments) => {
            // A payload from stdin leaves nobody there to ask.
            let set = arguments.set(submit::payload(arguments.set_payload.as_deref())?);
            let work = |body| letters("dlq.replay", "replayed", "Replay", body);
            bulk_or_one(global, &arguments.discard, set, work).await
        }
        Command::Discard(arguments) => {
            let work = |body| letters("dlq.discard", "discarded", "Discard", body);
            bulk_or_one(global, &arguments, Map::new(), work).await
        }
    }
}

fn letters(endpoint: &'static str, done: &'static str, verb: &'static str, body: Map<String, Value>) -> Work {
    Work { endpoint, done, verb, noun: "dead letter", body, rate: None }
}

async fn bulk_or_one(
    global: &Global,
    arguments: &Discard,
    set: Map<String, Value>,
    work: impl FnOnce(Map<String, Value>) -> Work,
) -> anyhow::Result<Ended> {
    let set = (!set.is_empty()).then(|| ("set".to_owned(), Value::Object(set)));
    match arguments.which.chosen(Map::new())? {
        Chosen::One(id) => {
            if arguments.rate.is_some() {
                return Err(Usage("--rate is for filters and --all, not for one run by its id".to_owned()).into());
            }
            let mut body = Map::from_iter([("run_id".to_owned(), json!(id))]);
            body.extend(set);
            bulk::one(&Api::connect(global).await?, &work(body), &arguments.options).await
        }
        Chosen::Those(mut body) => {
            body.extend(set);
            let mut work = work(body);
            work.rate = arguments.rate;
            bulk::run(&Api::connect(global).await?, work, &arguments.options).await
        }
    }
}

impl Replay {
    /// What is changed.
    fn set(&self, payload: Option<Value>) -> Map<String, Value> {
        let headers: Map<String, Value> =
            self.set_header.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let fields = [
            ("queue", self.set_queue.clone().map(Value::String)),
            ("priority", self.set_priority.map(Value::from)),
            ("payload", payload),
            ("headers", (!headers.is_empty()).then_some(Value::Object(headers))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
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

/// Page after page, up to the limit.
async fn list(api: &Api, arguments: List) -> anyhow::Result<Ended> {
    let mut entries: Vec<Value> = Vec::new();
    let mut cursor = arguments.cursor.clone();
    loop {
        let mut body = arguments.filter.fields();
        let left = arguments.limit.saturating_sub(entries.len() as u64);
        body.insert("limit".to_owned(), json!(left.min(PAGE)));
        body.extend(cursor.take().map(|cursor| ("cursor".to_owned(), json!(cursor))));
        let mut page = api.ask_patiently("dlq.list", Value::Object(body), GROUPING).await?;
        if let Some(Value::Array(found)) = page.get_mut("entries").map(Value::take) {
            entries.extend(found);
        }
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || entries.len() as u64 >= arguments.limit {
            break;
        }
    }
    if arguments.json {
        let mut answer = json!({"entries": entries});
        if let Some(cursor) = cursor {
            answer["cursor"] = json!(cursor);
        }
        output::json(&answer)?;
        return Ok(Ended::Well);
    }
    if entries.is_empty() {
        eprintln!("no dead letters");
        return Ok(Ended::Well);
    }
    output::say(output::table(&rows(&entries, which::now(), output::columns()), &[2, 3]).trim_end())?;
    if let Some(cursor) = cursor {
        eprintln!("there are more: --cursor {cursor} goes on, --limit shows more at once");
    }
    Ok(Ended::Well)
}

/// A table whose last column takes the room that the others leave.
fn fitted(mut rows: Vec<Vec<String>>, columns: usize) -> Vec<Vec<String>> {
    /// Below that, an error says nothing; a wide line is better then.
    const LEAST: usize = 24;
    let last = rows.first().map_or(0, Vec::len).saturating_sub(1);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let others: usize = (0..last).map(|column| width(column) + 2).sum();
    let room = columns.saturating_sub(others + 1).max(LEAST);
    for row in &mut rows {
        row[last] = cut(&row[last], room);
    }
    rows
}

fn whole(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or(0)
}

fn rows(entries: &[Value], now: Timestamp, columns: usize) -> Vec<Vec<String>> {
    let heading = ["run", "type", "died", "attempts", "error"].map(str::to_owned).to_vec();
    let row = |entry: &Value| {
        let tenant = Some(text(entry, "tenant")).filter(|tenant| *tenant != "default");
        let tenant = tenant.map(|tenant| format!("{tenant}/")).unwrap_or_default();
        let round = Some(whole(entry, "round")).filter(|round| *round > 1);
        let error = entry.get("error").unwrap_or(&Value::Null);
        vec![
            format!("{tenant}{}", text(entry, "run_id")),
            cut(text(entry, "type"), 24),
            age(text(entry, "ended_at"), now),
            format!("{}{}", whole(entry, "attempt"), round.map(|round| format!(", round {round}")).unwrap_or_default()),
            format!("{}: {}", text(error, "kind"), text(error, "message")),
        ]
    };
    fitted(std::iter::once(heading).chain(entries.iter().map(row)).collect(), columns)
}

fn groups(answer: &Value, json: bool) -> anyhow::Result<Ended> {
    if json {
        output::json(answer)?;
        return Ok(Ended::Well);
    }
    let groups = answer.get("groups").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if groups.is_empty() {
        eprintln!("no dead letters");
        return Ok(Ended::Well);
    }
    output::say(output::table(&group_rows(groups, which::now(), output::columns()), &[0, 2, 3]).trim_end())?;
    if answer.get("cursor").is_some() {
        eprintln!("there are so many letters that only the oldest were grouped; --since looks at newer ones");
    }
    Ok(Ended::Well)
}

fn group_rows(groups: &[Value], now: Timestamp, columns: usize) -> Vec<Vec<String>> {
    let heading = ["letters", "type", "first", "last", "for example", "error"].map(str::to_owned).to_vec();
    let row = |group: &Value| {
        vec![
            number(whole(group, "count")),
            cut(text(group, "type"), 24),
            age(text(group, "first"), now),
            age(text(group, "last"), now),
            cut(text(&group["example"], "run_id"), 40),
            format!("{}: {}", text(group, "error_kind"), text(group, "pattern")),
        ]
    };
    fitted(std::iter::once(heading).chain(groups.iter().map(row)).collect(), columns)
}

/// A letter for people: its run, then what it was made of.
fn show(letter: &Value) -> String {
    let mut shown = runs::show(letter);
    shown += &format!("\n{} {}\n", styled("alike", FAINT, 10), text(letter, "fingerprint"));
    let headers = letter.get("headers").and_then(Value::as_object).into_iter().flatten();
    for (name, value) in headers {
        let value = cut(value.as_str().unwrap_or_default(), 200);
        shown += &format!("{} {}: {value}\n", styled("header", FAINT, 10), cut(name, 100));
    }
    shown + &format!("{} {}\n", styled("payload", FAINT, 10), payload(letter).replace('\n', &format!("\n{:11}", "")))
}

/// The payload as a person reads it best: JSON laid out, else text, else its size.
fn payload(letter: &Value) -> String {
    if let Some(bytes) = letter.get("payload_bytes").and_then(Value::as_u64) {
        return format!("left out, it had {} bytes; replay it with --set-payload", number(bytes));
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(text(letter, "payload_base64")).unwrap_or_default();
    match String::from_utf8(bytes) {
        _ if text(letter, "payload_base64").is_empty() => "none".to_owned(),
        Ok(words) => output::plain(&exact::laid_out(&words)),
        Err(error) => {
            format!("{} bytes that are no text; --json has them", number(error.as_bytes().len() as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command as Any};
    use super::*;

    fn now() -> Timestamp {
        Timestamp::parse("2026-11-21T12:00:00Z").unwrap()
    }

    fn table(rows: &[Vec<String>], right: &[usize]) -> String {
        anstream::adapter::strip_str(&output::table(rows, right)).to_string()
    }

    #[test]
    fn letters_fit_a_hundred_columns() {
        let entry = |run: &str, message: &str, round: u64| {
            json!({"run_id": run, "tenant": "default", "type": "email.send", "round": round, "attempt": 12,
                "ended_at": "2026-11-21T11:55:00.000Z", "error": {"kind": "retryable", "message": message}})
        };
        let entries = [entry("main-p5-7", "no route\u{1b}[2J", 1), entry("main-p5-12345", &"long ".repeat(100), 2)];
        let shown = table(&rows(&entries, now(), 100), &[2, 3]);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        let (head, rest) = shown.split_at(shown.find("long").unwrap());
        assert_eq!(
            head,
            "\
run            type         died     attempts  error
main-p5-7      email.send  5 min           12  retryable: no route [2J
main-p5-12345  email.send  5 min  12, round 2  retryable: "
        );
        assert!(rest.ends_with("…\n"), "{rest}");
    }

    #[test]
    fn groups_show_how_many_since_when_and_of_what() {
        let groups =
            [json!({"fingerprint": "f", "type": "email.send", "error_kind": "timeout", "pattern": "after # ms",
            "count": 12_345, "first": "2026-11-18T12:00:00Z", "last": "2026-11-21T11:59:30Z",
            "example": {"run_id": "main-p5-7", "tenant": "default"}})];
        assert_eq!(
            table(&group_rows(&groups, now(), 100), &[0, 2, 3]),
            "\
letters  type        first  last  for example  error
 12,345  email.send    3 d  30 s  main-p5-7    timeout: after # ms
"
        );
    }

    #[test]
    fn a_payload_is_shown_as_it_reads_best() {
        let encoded =
            |bytes: &[u8]| payload(&json!({"payload_base64": base64::engine::general_purpose::STANDARD.encode(bytes)}));
        assert_eq!(encoded(b"{\"a\":1}"), "{\n  \"a\": 1\n}");
        assert_eq!(encoded(b"hello\x1b[2J"), "hello[2J");
        assert_eq!(encoded(&[0xff, 0xfe]), "2 bytes that are no text; --json has them");
        assert_eq!(encoded(b""), "none");
        assert!(payload(&json!({"payload_bytes": 2_000_000})).starts_with("left out, it had 2,000,000 bytes"));
    }

    #[test]
    fn what_a_replay_changes_is_read() {
        let line = "longshore dlq replay --type a --set-queue bulk --set-priority 2 --set-payload [1] \
                    --set-header X-A=b=c --set-header X-B= --rate 2.5 --limit 3 --yes";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Any::Dlq(Command::Replay(replay)) = cli.command else { panic!("not replay") };
        let set = replay.set(submit::payload(replay.set_payload.as_deref()).unwrap());
        let expected = json!({"queue": "bulk", "priority": 2, "payload": [1], "headers": {"X-A": "b=c", "X-B": null}});
        let set: Value = serde_json::from_str(&exact::write(&Value::Object(set))).unwrap();
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
