//! The live view of `dev`: a few lines at the bottom of the terminal that are drawn again four times a second, with log
//! lines scrolling above. If stdout is not a terminal, one line per event.
//!
//! It uses only plain lines, "up" and "erase": no alternate screen and no raw mode, so that the terminal stays as it
//! was and the last picture stays readable, however the program ends. Lines are cut to the width. When the window
//! changes its size, it is wiped first, since the terminal has then wrapped the old lines in a way that the program
//! cannot know.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longshore_backbone::wire::api::{NoHandler, QueueStatus, Queues};
use serde_json::Value;
use tokio::time::Instant;
use tracing_subscriber::fmt::MakeWriter;

use super::tally::{Counts, Tally};
use crate::cli::output::{self, BAD, FAINT, PENDING, STRONG, number};
use crate::cli::{events, queues};

/// Events in the picture: at least and at most so many, as the window has rows left for them.
const MIN_LATEST: usize = 4;
const MAX_LATEST: usize = 100;

/// Rows above the picture at most that are left to the newest lines of the log: else each would scroll out of sight as
/// it is written.
const LOG_ROWS: usize = 5;

/// Rows with queues at most.
const QUEUE_ROWS: usize = 4;

/// From this age on that of the oldest waiting job is shown.
const OLD_MS: u64 = 1_000;

/// Types in the picture; the others share one line.
const TYPES: usize = 10;

/// The longest name of a type, and in a narrow window, in which counts say more.
const NAME: usize = 40;
const SHORT_NAME: usize = 24;

/// The terminal, to which view and log write in turns.
#[derive(Clone)]
pub(crate) struct Screen {
    inner: Arc<Mutex<Drawing>>,
    /// Whether it is a terminal.
    pub(super) live: bool,
    muted: Arc<AtomicBool>,
}

#[derive(Default)]
struct Drawing {
    colours: bool,
    /// Lines of the picture at the bottom.
    drawn: u16,
    /// Columns and rows when it was drawn.
    size: (u16, u16),
    picture: String,
    /// Rows above the picture with the newest lines of the log.
    log_rows: usize,
    /// The first message, which is written again when the window was wiped.
    welcome: String,
}

impl Screen {
    /// `live`: a terminal, on which lines can be drawn again.
    pub(crate) fn new(live: bool) -> Self {
        let colours = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let inner = Arc::new(Mutex::new(Drawing { colours, ..Drawing::default() }));
        Self { inner, live, muted: Arc::default() }
    }

    pub(crate) fn has_colours(&self) -> bool {
        self.lock().colours
    }

    /// Where the log goes: above the picture on a terminal, else to stderr.
    pub(crate) fn writer(&self) -> impl for<'w> MakeWriter<'w> + Send + Sync + 'static {
        let screen = self.clone();
        move || Lines(screen.clone())
    }

    /// The first message, which stays in sight.
    pub(crate) fn welcome(&self, words: &str) {
        self.say(words);
        self.lock().welcome = format!("{words}\n");
    }

    /// A message for people that stays, above the picture.
    pub(crate) fn say(&self, words: &str) {
        let inner = self.lock();
        inner.write(&format!("{}{words}\n{}", inner.erase(), inner.picture));
    }

    /// No log from now on: connections end with the server, which is expected.
    pub(crate) fn mute(&self) {
        self.muted.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Drawing> {
        // A writer that panics leaves a broken picture behind, and the next one replaces it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drawing {
    /// What writes lines of the log above the picture, which stay in sight: until the next picture this one has so many
    /// rows less.
    fn logged(&mut self, lines: &str) -> String {
        let (columns, height) = (usize::from(self.size.0).max(1), usize::from(self.size.1));
        let before = self.erase();
        if self.drawn > 0 {
            let rows = lines.lines().map(|line| without_colours(line).chars().count().div_ceil(columns).max(1));
            self.log_rows = (self.log_rows + rows.sum::<usize>()).min(LOG_ROWS).min(height / 4);
            let room = height.saturating_sub(self.log_rows + 1);
            let end = self.picture.match_indices('\n').nth(room.saturating_sub(1)).map(|(at, _)| at + 1);
            self.picture.truncate(end.unwrap_or(self.picture.len()));
            self.drawn = self.drawn.min(u16::try_from(room).unwrap_or(u16::MAX));
        }
        before + lines + &self.picture
    }

    /// Replaces the picture.
    fn draw(&mut self, rows: &[String]) {
        let size = terminal_size();
        let room = usize::from(size.1.saturating_sub(1)).min(rows.len());
        let picture: String = rows[..room].iter().map(|row| cut(row, usize::from(size.0)) + "\n").collect();
        if size == self.size && picture == self.picture {
            return;
        }
        let mut out = if size == self.size { self.erase() } else { self.wipe() };
        self.log_rows = if size == self.size { self.log_rows } else { 0 };
        self.picture = picture;
        (self.drawn, self.size) = (u16::try_from(room).unwrap_or(u16::MAX), size);
        out.push_str(&self.picture);
        self.write(&out);
    }

    fn erase(&self) -> String {
        if self.drawn == 0 { String::new() } else { format!("\u{1b}[{}A\r\u{1b}[J", self.drawn) }
    }

    /// Wipes the whole window, but not the lines that have scrolled out of it. Not needed before the first picture.
    fn wipe(&self) -> String {
        if self.drawn == 0 { String::new() } else { format!("\u{1b}[2J\u{1b}[H{}", self.welcome) }
    }

    fn write(&self, text: &str) {
        // One write per picture, so that none is seen half. A terminal that has gone away is no reason to stop working.
        let mut out = io::stdout().lock();
        let written =
            if self.colours { out.write_all(text.as_bytes()) } else { out.write_all(without_colours(text).as_bytes()) };
        let _ = written.and_then(|()| out.flush());
    }
}

/// Writes the log's lines to the screen.
struct Lines(Screen);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.muted.load(Ordering::Relaxed) {
            return Ok(bytes.len());
        }
        if !self.0.live {
            // Without the lock: a stdout that nobody reads must not stop the parts of the node that log.
            return io::stderr().write(bytes);
        }
        let mut inner = self.0.lock();
        let out = inner.logged(&String::from_utf8_lossy(bytes));
        inner.write(&out);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The content of the picture.
pub(crate) struct View<'s> {
    pub(super) screen: &'s Screen,
    live: bool,
    namespace: &'s str,
    /// The server's address where commands do not look for it by themselves: the welcome scrolls out of sight.
    address: Option<String>,
    latest: VecDeque<Value>,
    queues: Vec<String>,
    /// Types without a handler, as the node knows them: also those of which no event came yet.
    no_handler: Vec<NoHandler>,
    faults: Vec<String>,
}

impl<'s> View<'s> {
    pub(crate) fn new(screen: &'s Screen, namespace: &'s str, address: Option<String>) -> Self {
        let (latest, queues, no_handler, faults) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let live = screen.live;
        Self { screen, live, namespace, address, latest, queues, no_handler, faults }
    }

    pub(crate) fn happened(&mut self, event: Value) {
        if !self.live {
            self.screen.say(&events::line(&event));
            return;
        }
        if self.latest.len() == MAX_LATEST {
            self.latest.pop_front();
        }
        self.latest.push_back(event); // made a line only if it is drawn
    }

    pub(crate) fn queues(&mut self, answer: &Queues) {
        let queue = |queue: &QueueStatus| {
            let [waiting, running] = [queues::waiting(queue), queue.running].map(number);
            let others =
                [(queue.scheduled, "scheduled"), (queue.retrying, "retrying"), (queues::deferred(queue), "deferred")];
            let others = others.into_iter().filter_map(|(count, word)| Some((count.filter(|count| *count > 0)?, word)));
            let others: String = others.map(|(count, word)| format!(", {} {word}", number(count))).collect();
            let paused = if queue.paused { ", paused" } else { "" };
            let oldest = queue.oldest_ms.get("waiting").copied().filter(|age| *age >= OLD_MS).map(output::took);
            let oldest = oldest.map_or_else(String::new, |age| format!(" (oldest {age})"));
            format!("{}{paused} {waiting} waiting{oldest}, {running} running{others}", queue.queue)
        };
        self.queues = answer.queues.iter().map(queue).collect();
        self.no_handler.clone_from(&answer.no_handler);
    }

    /// The faults on purpose that are set now; without a picture, each is said as it is set.
    pub(crate) fn faults(&mut self, faults: Vec<String>) {
        if !self.live {
            let new = faults.iter().filter(|fault| !self.faults.contains(fault));
            new.for_each(|fault| self.screen.say(&said(fault)));
        }
        self.faults = faults;
    }

    pub(crate) fn draw(&mut self, tally: &Tally, now: Instant) {
        if self.live {
            let (columns, rows) = terminal_size();
            let mut inner = self.screen.lock();
            let height = usize::from(rows).saturating_sub(inner.log_rows);
            inner.draw(&self.rows(tally, now, usize::from(columns), height));
        }
    }

    /// Draws for the last time, and leaves the picture where it is: later messages and events stand below it.
    pub(crate) fn end(&mut self, tally: &Tally, now: Instant) {
        self.draw(tally, now);
        self.live = false;
        let mut inner = self.screen.lock();
        (inner.drawn, inner.log_rows, inner.picture) = (0, 0, String::new());
    }

    /// The picture for a window of `width` columns and `height` rows.
    fn rows(&self, tally: &Tally, now: Instant, width: usize, height: usize) -> Vec<String> {
        let up = tally.elapsed(now).as_secs();
        let up = format!("{:02}:{:02}:{:02}", up / 3_600, up / 60 % 60, up % 60);
        let mut rows = side_by_side(format!("{STRONG}up {up}{STRONG:#}"), &self.queues, width);
        if let Some(address) = self.address.as_ref().map(|address| format!("{FAINT}NATS_URL={address}{FAINT:#}")) {
            match rows.last_mut() {
                Some(last) if shown_width(last) + 3 + shown_width(&address) <= width => {
                    *last += &format!("   {address}")
                }
                _ => rows.push(format!("  {address}")),
            }
        }
        rows.extend(self.faults.iter().flat_map(|fault| wrapped(&said(fault), width)));
        let types = tally.types();
        let seen: Vec<_> = types.iter().filter(|(_, counts)| counts.without_handler > 0).collect();
        rows.extend(seen.iter().flat_map(|(name, counts)| {
            // Nodes look at a few of them at a time, so the events of a moment are of a part of them.
            let of_type = self.no_handler.iter().filter(|missing| missing.job_type.as_str() == *name);
            without_handler(self.namespace, name, counts, &of_type.collect::<Vec<_>>(), width)
        }));
        let is_seen = |missing: &NoHandler| seen.iter().any(|(name, _)| *name == missing.job_type.as_str());
        let unseen = self.no_handler.iter().filter(|missing| !is_seen(missing));
        rows.extend(unseen.flat_map(|missing| known_without_handler(missing, width)));
        if types.is_empty() {
            rows.push(format!("{FAINT}no jobs yet{FAINT:#}"));
            return rows;
        }
        rows.extend(table(&types, tally, now, width));
        rows.push(String::new());
        // The last row of the window stays free for the cursor.
        let most = height.saturating_sub(rows.len() + 1).max(MIN_LATEST);
        let latest = self.latest.iter().skip(self.latest.len().saturating_sub(most));
        rows.extend(latest.map(|event| events::line_within(event, width)));
        rows
    }
}

/// Nobody is to take a fault on purpose for a real one.
fn said(fault: &str) -> String {
    format!("{BAD}fault on purpose:{BAD:#} {fault}")
}

/// The commonest mistake of the first day, in sight as long as it lasts.
fn without_handler(namespace: &str, name: &str, counts: &Counts, known: &[&NoHandler], width: usize) -> Vec<String> {
    let Counts { without_handler, tenant, without_handler_since, .. } = counts;
    let (name, tenant) = (output::cut(name, 60), output::cut(tenant, 64));
    let subject = format!("{namespace}.work.{tenant}.{name}");
    let jobs = known.iter().map(|missing| missing.jobs).sum::<u64>().max(*without_handler);
    let never = known.iter().find(|missing| missing.never_served).copied();
    with_subject(&warning_without_handler(&name, jobs, without_handler_since, never), &subject, width)
}

/// The same of a type whose jobs have waited since before `dev` was started.
fn known_without_handler(missing: &NoHandler, width: usize) -> Vec<String> {
    let NoHandler { job_type, jobs, since, subject, .. } = missing;
    let (name, never) = (output::cut(job_type.as_str(), 60), Some(missing).filter(|missing| missing.never_served));
    let warning = warning_without_handler(&name, *jobs, &since.to_string(), never);
    with_subject(&warning, &output::cut(subject, 200), width)
}

/// What may be meant comes first, as a low window cuts off the rest.
fn warning_without_handler(name: &str, jobs: u64, since: &str, never: Option<&NoHandler>) -> String {
    let jobs = match jobs {
        0 => "jobs wait".to_owned(), // for their next look, or attempt
        1 => "1 job waits".to_owned(),
        more => format!("{} jobs wait", number(more)),
    };
    let since = output::time_of_day(since).get(..8).unwrap_or_default();
    let meant = never.and_then(|never| never.did_you_mean.as_ref());
    let meant = meant.map_or_else(String::new, |of| format!("did you mean {}? ", output::cut(of.as_str(), 60)));
    let never = if never.is_some() { "; none was ever online" } else { "" };
    format!("{PENDING}no handler for {name}:{PENDING:#} {meant}{jobs} since {since}{never}")
}

fn with_subject(warning: &str, subject: &str, width: usize) -> Vec<String> {
    let mut rows = wrapped(warning, width);
    rows.push(format!("  handlers subscribe to {subject}"));
    rows
}

/// The text in rows of whole words, the later ones indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match rows.last_mut() {
            Some(row) if shown_width(row) + 1 + shown_width(word) <= width => *row += &format!(" {word}"),
            Some(_) => rows.push(format!("  {word}")),
            None => rows.push(word.to_owned()),
        }
    }
    rows
}

/// The parts beside each other behind the first, in few rows; the last one says how many had no room.
fn side_by_side(first: String, parts: &[String], width: usize) -> Vec<String> {
    let mut rows = vec![first];
    for (at, part) in parts.iter().enumerate() {
        let last = rows.len() - 1;
        if shown_width(&rows[last]) + 3 + shown_width(part) <= width {
            rows[last] += &format!("   {part}");
        } else if rows.len() < QUEUE_ROWS {
            rows.push(format!("  {part}"));
        } else {
            rows.push(format!("  {FAINT}and {} more: longshore queues shows all{FAINT:#}", parts.len() - at));
            break;
        }
    }
    rows
}

fn shown_width(text: &str) -> usize {
    without_colours(text).chars().count()
}

#[derive(Clone, Copy)]
struct Column {
    heading: &'static str,
    /// Also where all counts are zero.
    always: bool,
    /// In a narrow window the columns with the highest number go first.
    rank: u8,
    count: fn(&Counts) -> u64,
}

/// Jobs under way have begun, and their end is not published yet: with short jobs these are more than run right now.
const COLUMNS: [Column; 8] = [
    Column { heading: "under way", always: true, rank: 0, count: |counts| counts.running },
    Column { heading: "scheduled", always: false, rank: 4, count: |counts| counts.scheduled },
    Column { heading: "deferred", always: false, rank: 2, count: |counts| counts.deferred },
    Column { heading: "retrying", always: true, rank: 1, count: |counts| counts.retrying },
    Column { heading: "completed", always: true, rank: 1, count: |counts| counts.completed },
    Column { heading: "failed attempts", always: true, rank: 5, count: |counts| counts.failed_attempts },
    Column { heading: "cancelled", always: false, rank: 6, count: |counts| counts.cancelled },
    Column { heading: "dead", always: true, rank: 0, count: |counts| counts.dead },
];

/// The table of the types: the last line sums up those for which there is no room. If it does not fit into `width`,
/// long names lose their middle, then the least important columns are left out, which a row behind it says.
fn table(types: &[(&str, &Counts)], tally: &Tally, now: Instant, width: usize) -> Vec<String> {
    let is_shown = |column: &Column| column.always || types.iter().any(|(_, counts)| (column.count)(counts) > 0);
    let mut columns: Vec<Column> = COLUMNS.into_iter().filter(is_shown).collect();
    let fits = |rows: &[String]| rows.iter().all(|row| shown_width(row) <= width);
    let mut hidden = Vec::new();
    let whole = table_of(&columns, types, tally, now, NAME);
    if fits(&whole) {
        return whole;
    }
    loop {
        let mut rows = table_of(&columns, types, tally, now, SHORT_NAME);
        let least = columns.iter().map(|column| column.rank).max().filter(|rank| *rank > 0 && !fits(&rows));
        let Some(least) = least else {
            if !hidden.is_empty() {
                rows.extend(wrapped(&format!("{FAINT}a wider window shows: {}{FAINT:#}", hidden.join(", ")), width));
            }
            return rows;
        };
        hidden.extend(columns.iter().filter(|column| column.rank == least).map(|column| column.heading));
        columns.retain(|column| column.rank != least);
    }
}

fn table_of(columns: &[Column], types: &[(&str, &Counts)], tally: &Tally, now: Instant, name: usize) -> Vec<String> {
    let row = |name: String, of: &[(&str, &Counts)]| {
        let sums = columns.iter().map(|column| number(of.iter().map(|(_, counts)| (column.count)(counts)).sum()));
        let rate: f64 = of.iter().map(|(_, counts)| tally.rate(counts, now)).sum();
        std::iter::once(name).chain(sums).chain([format!("{rate:.1}")]).collect::<Vec<String>>()
    };
    let heading = ["type"].into_iter().chain(columns.iter().map(|column| column.heading)).chain(["per s"]);
    let mut rows = vec![heading.map(str::to_owned).collect()];
    let short = |of: &str| output::shortened(&output::cut(of, 128), name);
    rows.extend(types.iter().take(TYPES).map(|one| row(short(one.0), std::slice::from_ref(one))));
    if types.len() > TYPES {
        rows.push(row(format!("and {} more", types.len() - TYPES), &types[TYPES..]));
    }
    let right: Vec<usize> = (1..=columns.len() + 1).collect();
    output::table(&rows, &right).lines().map(str::to_owned).collect()
}

/// Columns and rows of the terminal; those of old terminals if it does not say.
fn terminal_size() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
        _ => (80, 24),
    }
}

/// A row cut to `columns`, which its last character says then, its colours closed. Counts characters: a wide one may
/// cost a broken line until the next picture.
fn cut(row: &str, columns: usize) -> String {
    let is_too_long = without_colours(row).chars().count() > columns;
    let (mut out, mut shown, mut rest) = (String::with_capacity(row.len()), 0, row.chars());
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            out.push(c);
            // Only colours stand here, and these end with an m.
            out.extend(rest.by_ref().take_while(|c| *c != 'm'));
            out.push('m');
        } else if shown < columns {
            shown += 1;
            out.push(if is_too_long && shown == columns { '…' } else { c });
        }
    }
    out
}

fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let end = escape[2..].find(|c: char| c.is_ascii_alphabetic()).map_or(escape.len(), |end| end + 3);
        // Colours are removed; the view needs moving and erasing.
        if !escape[..end].ends_with('m') {
            let _ = write!(out, "{}", &escape[..end]);
        }
        rest = &escape[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_cut_to_the_width_with_their_colours_closed() {
        assert_eq!(cut("\u{1b}[1mabc\u{1b}[0mdef", 5), "\u{1b}[1mabc\u{1b}[0md…");
        assert_eq!(cut("\u{1b}[1mabc\u{1b}[0mdef", 6), "\u{1b}[1mabc\u{1b}[0mdef");
        assert_eq!(without_colours("\u{1b}[2A\r\u{1b}[Ja\u{1b}[32mb\u{1b}[0m"), "\u{1b}[2A\r\u{1b}[Jab");
    }

    #[test]
    fn the_picture_says_what_runs_and_what_happened_last() {
        let screen = Screen::new(true);
        let (start, mut view) = (Instant::now(), View::new(&screen, "longshore", None));
        let mut tally = Tally::new(start);
        assert!(view.rows(&tally, start, 120, 24)[1].contains("no jobs yet"));
        for run in 0..12 {
            let event = json!({"event": "started", "run_id": format!("r{run}"), "type": format!("t{run}"), "tenant": "default",
                "at": "2026-11-21T12:00:00.000Z"});
            tally.count(&event, start);
            view.happened(event);
        }
        let queues = json!({"queues": [{"queue": "main", "concurrency": 12, "depth": 1_512, "depths": {}, "waiting": {"p5": 1_500}, "running": 12,
            "oldest_age_ms": null, "paused": false, "served": true}]});
        view.queues(&serde_json::from_value(queues).unwrap());
        let rows = view.rows(&tally, start, 120, 24);
        let plain: Vec<_> = rows.iter().map(|row| without_colours(row)).collect();
        assert_eq!(plain[0], "up 00:00:00   main 1,500 waiting, 12 running");
        assert_eq!(plain[1], "type        under way  retrying  completed  failed attempts  dead  per s");
        assert_eq!(plain[12], "and 2 more          2         0          0                0     0    0.0");
        assert_eq!(plain.len(), 23, "the window but for its last row");
        assert_eq!(view.rows(&tally, start, 120, 10).len(), 1 + 12 + 1 + MIN_LATEST);
        assert!(plain.last().is_some_and(|row| row.contains("r11")), "{plain:?}");

        let event = json!({"event": "deferred", "run_id": "r1", "type": "t1", "tenant": "default",
            "reason": "no_handler_online", "at": "2026-11-21T12:00:00.000Z"});
        tally.count(&event, start);
        let rows = view.rows(&tally, start, 120, 24);
        let plain: Vec<_> = rows.iter().map(|row| without_colours(row)).collect();
        assert!(plain[1].contains("no handler for t1: 1 job waits since 12:00:00"), "{plain:?}");
        assert_eq!(plain[2], "  handlers subscribe to longshore.work.default.t1");
        assert!(plain[3].contains("deferred") && !plain[3].contains("cancelled"), "{}", plain[3]);
        let missing = [("t1", false), ("left.over", true)].map(|(name, never_served)| {
            json!({"tenant": "acme", "type": name, "jobs": 3, "since": "2026-11-21T11:58:00Z", "never_served": never_served,
                "looked_at": "2026-11-21T12:00:00Z", "subject": format!("ls.work.acme.{name}")})
        });
        let left = json!({"no_handler": missing, "queues": [{"queue": "main", "concurrency": 12, "depth": 0, "depths": {},
            "waiting": {}, "running": 0, "oldest_age_ms": null, "paused": false, "served": true, "scheduled": 1_200,
            "retrying": 0, "deferred": {"no_handler_online": 3}}]});
        view.queues(&serde_json::from_value(left).unwrap());
        let rows = view.rows(&tally, start, 120, 24);
        let plain: Vec<_> = rows.iter().map(|row| without_colours(row)).collect();
        assert_eq!(plain[0], "up 00:00:00   main 0 waiting, 0 running, 1,200 scheduled, 3 deferred");
        assert!(plain[1].contains("no handler for t1: 3 jobs wait since 12:00:00"), "all, by the answer: {plain:?}");
        let left_over = "no handler for left.over: 3 jobs wait since 11:58:00; none was ever online";
        assert_eq!(plain[3], left_over, "from before the start");
        assert_eq!(plain[4], "  handlers subscribe to ls.work.acme.left.over");
        view.no_handler[1].did_you_mean = Some(serde_json::from_value(json!("left.behind")).unwrap());
        let narrow: Vec<_> = view.rows(&tally, start, 60, 24).iter().map(|row| without_colours(row)).collect();
        assert_eq!(
            narrow[4], "no handler for left.over: did you mean left.behind? 3 jobs",
            "what helps comes first: {narrow:#?}"
        );
        assert_eq!(narrow[5], "  wait since 11:58:00; none was ever online");
        view.address = Some("nats://127.0.0.1:28211".to_owned());
        let first = without_colours(&view.rows(&tally, start, 120, 24)[0]);
        assert!(first.ends_with("3 deferred   NATS_URL=nats://127.0.0.1:28211"), "{first}");
        assert_eq!(without_colours(&view.rows(&tally, start, 80, 24)[1]), "  NATS_URL=nats://127.0.0.1:28211");
        view.queues(&serde_json::from_value(json!({"queues": []})).unwrap());
        let narrow: Vec<_> = view.rows(&tally, start, 60, 24).iter().map(|row| without_colours(row)).collect();
        assert_eq!(narrow[3], "type        under way  retrying  completed  dead  per s");
        assert!(narrow.contains(&"a wider window shows: failed attempts, deferred".to_owned()), "{narrow:#?}");
    }

    #[test]
    fn a_fault_on_purpose_is_in_sight_as_long_as_it_is_set() {
        let screen = Screen::new(true);
        let (start, mut view) = (Instant::now(), View::new(&screen, "longshore", None));
        view.faults(vec!["t1 meets storm until 2026-11-21T12:10:00.000Z".to_owned()]);
        let row = |view: &View<'_>| without_colours(&view.rows(&Tally::new(start), start, 120, 24)[1]);
        assert_eq!(row(&view), "fault on purpose: t1 meets storm until 2026-11-21T12:10:00.000Z");
        view.faults(Vec::new());
        assert!(row(&view).contains("no jobs yet"));
    }

    #[test]
    fn many_queues_have_a_few_rows_and_the_rest_is_counted() {
        let screen = Screen::new(true);
        let mut view = View::new(&screen, "longshore", None);
        let queue = |number: usize| {
            json!({"queue": format!("queue-{number}"), "concurrency": 12, "depth": 0, "depths": {}, "waiting": {"p5": 3}, "running": 1,
                "oldest_age_ms": 65_000, "oldest_ms": {"waiting": 65_000}, "paused": number == 0, "served": true})
        };
        let queues: Vec<_> = (0..12).map(queue).collect();
        view.queues(&serde_json::from_value(json!({"queues": queues})).unwrap());
        let start = Instant::now();
        let rows = view.rows(&Tally::new(start), start, 80, 24);
        let plain: Vec<_> = rows.iter().map(|row| without_colours(row)).collect();
        assert_eq!(plain[0], "up 00:00:00   queue-0, paused 3 waiting (oldest 1 min 5 s), 1 running");
        assert!(plain.iter().all(|row| row.chars().count() <= 80), "{plain:#?}");
        assert_eq!(plain[4], "  and 8 more: longshore queues shows all");
    }

    #[test]
    fn in_a_narrow_window_long_names_go_before_what_waits() {
        let (start, name) = (Instant::now(), "billing.invoice.send_reminder");
        let mut tally = Tally::new(start);
        for (run, event) in [("a", "scheduled"), ("b", "deferred"), ("c", "cancelled")] {
            tally.count(&json!({"event": event, "run_id": run, "type": name, "tenant": "default"}), start);
        }
        let shown = |width| {
            let rows = table(&tally.types(), &tally, start, width);
            let rows: Vec<_> = rows.iter().map(|row| without_colours(row)).collect();
            assert!(rows.iter().all(|row| row.chars().count() <= width), "{rows:#?}");
            rows
        };
        assert!(shown(200)[1].starts_with(name) && shown(200)[0].contains("cancelled"));
        assert!(shown(120)[1].starts_with("bill…") && shown(120)[0].contains("cancelled"));
        assert!(shown(80)[0].contains("deferred"), "{:#?}", shown(80));
    }

    #[test]
    fn lines_of_the_log_stay_in_sight() {
        let screen = Screen::new(true);
        let mut inner = screen.lock();
        let picture: String = (1..=23).map(|row| format!("row {row}\n")).collect();
        (inner.size, inner.drawn, inner.picture) = ((80, 24), 23, picture);
        let out = inner.logged("one\n");
        assert!(out.starts_with("\u{1b}[23A\r\u{1b}[Jone\nrow 1\n") && out.ends_with("row 22\n"), "{out}");
        assert_eq!((inner.drawn, inner.log_rows), (22, 1));
        let out = inner.logged(&format!("{}\n", "long ".repeat(20)));
        assert!(out.starts_with("\u{1b}[22A\r") && out.ends_with("row 20\n"), "two rows wide: {out}");
        let out = inner.logged(&"more\n".repeat(30));
        assert!(out.ends_with("row 18\n"), "{out}");
        assert_eq!((usize::from(inner.drawn), inner.log_rows), (18, LOG_ROWS), "the picture keeps the most of it");
    }
}
