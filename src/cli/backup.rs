//! `longshore backup` and `longshore restore`: all streams and buckets of a cluster in a folder, and back.
//!
//! What is taken in which order, and why a restored cluster goes on as one that was killed: docs/backup.md.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use futures_util::future::join_all;
use longshore::signals::{Signals, Word};
use longshore_backbone::client::NO_NODE;
use longshore_backbone::snapshot::{Marks, Snapshot, StoredStream, checksum};
use longshore_backbone::wire::api::{
    ApiError, NodesList, Nothing, PauseRequest, QueueStatus, QueuesList, QueuesPause, QueuesRequest, QueuesResume,
    ResumeRequest,
};
use longshore_domain::{Queue, Timestamp, duration};
use serde::{Deserialize, Serialize};

use super::client::Api;
use super::output::{self, PENDING, number};
use super::queues::PAUSES_WITHIN;
use super::serve::UNHEARD;
use super::target::now;
use super::{Ended, Global};

/// The form of backups that this program writes and reads.
const VERSION: u32 = 1;
/// Written last: a folder without it is no backup.
const MANIFEST: &str = "manifest.json";
/// How often it is looked whether attempts have ended.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often, and after which pause, the queues are asked for again that are to go on.
const LISTS: usize = 10;
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How far this machine's clock and the server's may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct BackupArguments {
    /// The folder, which is made, or is empty
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How long to wait for attempts that run to end; one that runs on is tried again after a restore
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    wait: Duration,
    /// How long nodes may start nothing at most: a backup that takes longer fails
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10m")]
    pause: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// The folder of a backup
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// On how many servers each stream is kept [default: as before]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,
}

/// What a folder holds.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    /// The version of the program that wrote it.
    longshore: String,
    namespace: String,
    began_at: Timestamp,
    /// By then the streams up to the run records were read: it is the state of this time.
    cut_at: Timestamp,
    ended_at: Timestamp,
    /// Attempts that ran meanwhile.
    running: usize,
    marks: Marks,
    /// In the order in which they were read.
    streams: Vec<StoredEntry>,
    /// What fell due while the schedules were read, a line each.
    #[serde(default)]
    fired: Option<FiredFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FiredFile {
    file: String,
    bytes: u64,
    sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredEntry {
    stream: String,
    file: String,
    #[serde(flatten)]
    snapshot: Snapshot,
}

pub(crate) async fn backup(global: &Global, arguments: BackupArguments) -> anyhow::Result<Ended> {
    let BackupArguments { dir, wait, pause } = arguments;
    let mut signals = Signals::listen().context(UNHEARD)?;
    let cannot = || format!("cannot write into {}", dir.display());
    fs::create_dir_all(&dir).with_context(cannot)?;
    ensure!(fs::read_dir(&dir).with_context(cannot)?.next().is_none(), "{} is not empty", dir.display());
    let api = Api::connect(global).await?;
    let streams = api.client.stored_streams().await?;
    ensure!(!streams.is_empty(), "there are no streams of namespace {} on this server", global.namespace());
    let began_at = now();
    let mut hold =
        Standstill { api: &api, streams: &streams, until: began_at.plus(pause), has_nodes: true, queues: Vec::new() };
    let mut word = None;
    let cut = tokio::select! {
        cut = cut(&mut hold, &dir, wait, began_at) => cut,
        came = signals.next() => Err(ended_by(*word.insert(came))),
    };
    let word = released(&hold, &mut signals, word).await;
    let mut manifest = cut?;
    if let Some(word) = word {
        return Err(ended_by(word));
    }
    eprintln!("jobs go on; they were paused for {}", output::span(began_at, now()));
    let others = async {
        for stream in streams.iter().filter(|stream| !stream.is_of_cut()) {
            manifest.streams.push(written(&api, stream, &dir).await?);
        }
        anyhow::Ok(())
    };
    tokio::select! {
        written = others => written?,
        word = signals.next() => return Err(ended_by(word)),
    }
    manifest.ended_at = now();
    let (messages, bytes) = sums(&manifest.streams);
    let text = serde_json::to_vec_pretty(&manifest)?;
    in_place(&dir, MANIFEST, async |mut file: &File| Ok(file.write_all(&text)?)).await?;
    let streams = manifest.streams.len();
    output::say(&format!("{}: {streams} streams, {messages} messages, {bytes} bytes", dir.display()))?;
    Ok(Ended::Success)
}

fn ended_by(word: Word) -> anyhow::Error {
    anyhow::anyhow!("ended by {word}; the folder is no backup")
}

/// Lets everything go on, and returns the signal that has come by then. A second one does not wait for that: if no node
/// answers, it may take two minutes.
async fn released(hold: &Standstill<'_>, signals: &mut Signals, mut word: Option<Word>) -> Option<Word> {
    let mut release = std::pin::pin!(hold.release());
    loop {
        let came = tokio::select! {
            () = &mut release => return word,
            came = signals.next() => came,
        };
        if word.replace(came).is_some() {
            anstream::eprintln!(
                "{PENDING}warning:{PENDING:#} ended by {came}; what is still paused goes on at {}",
                hold.until
            );
            came.end_at_once();
        }
        eprintln!("jobs go on first; a second signal ends at once");
    }
}

/// Has everything stand still, and reads the streams among which messages move.
async fn cut(hold: &mut Standstill<'_>, dir: &Path, wait: Duration, began_at: Timestamp) -> anyhow::Result<Manifest> {
    let until = hold.take().await?;
    let running = hold.calm(wait).await?;
    if running > 0 {
        anstream::eprintln!(
            "{PENDING}warning:{PENDING:#} {running} attempts run on; after a restore they are tried again"
        );
    }
    let marks = hold.api.client.marks().await?;
    // What falls due as the snapshot begins may be in its state, and not in its data.
    let due_from = hold.api.client.last_schedule().await?;
    let (mut streams, mut fired) = (Vec::new(), None);
    for stream in hold.cut() {
        let entry = written(hold.api, stream, dir).await?;
        if stream.has_times() {
            fired = Some(fired_since(hold.api, &entry.stream, due_from, dir).await?);
        }
        streams.push(entry);
        ensure!(Instant::now() < until, "it takes longer than jobs may be paused: raise --pause");
    }
    hold.must_have_held().await?;
    let cut_at = now();
    Ok(Manifest {
        version: VERSION,
        longshore: env!("CARGO_PKG_VERSION").to_owned(),
        namespace: hold.api.client.names().namespace().to_owned(),
        began_at,
        cut_at,
        ended_at: cut_at,
        running,
        marks,
        streams,
        fired,
    })
}

/// What stands still while the cut is read.
struct Standstill<'a> {
    api: &'a Api,
    streams: &'a [StoredStream],
    /// When it ends by itself, should this program be killed.
    until: Timestamp,
    /// Without nodes nothing runs.
    has_nodes: bool,
    /// The queues that were paused, and until when they were before.
    queues: Vec<(Queue, Option<Timestamp>)>,
}

impl<'a> Standstill<'a> {
    fn cut(&self) -> impl Iterator<Item = &'a StoredStream> + use<'a> {
        self.streams.iter().filter(|stream| stream.is_of_cut())
    }

    /// Pauses all queues, then the consumers of the streams. Returns until when that holds.
    async fn take(&mut self) -> anyhow::Result<Instant> {
        let queues = match self.listed().await {
            Ok(queues) => queues,
            Err(error) if error.message == NO_NODE => {
                self.has_nodes = false;
                Vec::new()
            }
            Err(error) => return Err(error.into()),
        };
        let queues = queues.into_iter().filter(|queue| !self.stands_still(queue));
        self.queues = queues.map(|queue| (queue.queue, queue.paused_until)).collect();
        let paused = self.queues.iter().map(|(queue, _)| self.pause(queue, self.until));
        join_all(paused).await.into_iter().collect::<anyhow::Result<()>>()?;
        let asked_at = Instant::now();
        let mut left = Duration::MAX;
        for stream in self.cut() {
            let shortest = self.api.client.pause_consumers(&stream.name, Some(self.until)).await?;
            left = left.min(shortest.unwrap_or(left));
        }
        let wanted = self.until.since(now());
        let left = if left == Duration::MAX { wanted } else { left };
        ensure!(
            left + CLOCKS_APART > wanted,
            "this machine's clock is behind the server's: set it, as pauses end by it"
        );
        eprintln!("{} queues are paused until {}, if not before", self.queues.len(), self.until);
        Ok(asked_at + left)
    }

    /// The queues as they are now.
    async fn listed(&self) -> Result<Vec<QueueStatus>, ApiError> {
        Ok(self.api.ask::<QueuesList>(QueuesRequest::default()).await?.read()?.queues)
    }

    fn stands_still(&self, queue: &QueueStatus) -> bool {
        queue.paused && queue.paused_until.is_none_or(|at| at >= self.until)
    }

    /// Fails if jobs may have gone on: an operator may resume a queue meanwhile, and a node may make one.
    async fn must_have_held(&self) -> anyhow::Result<()> {
        let queues = match self.listed().await {
            Err(error) if error.message == NO_NODE => return Ok(()),
            listed => listed?,
        };
        if let Some(QueueStatus { queue, .. }) = queues.iter().find(|queue| !self.stands_still(queue)) {
            bail!("queue {queue} went on during the backup: begin again, and leave its pause alone");
        }
        Ok(())
    }

    async fn pause(&self, queue: &Queue, until: Timestamp) -> anyhow::Result<()> {
        let request = PauseRequest { queue: Some(queue.clone()), job_type: None, until: Some(until) };
        self.api.ask_within::<QueuesPause>(request, PAUSES_WITHIN).await?;
        Ok(())
    }

    /// Waits until no attempt runs and nothing is on its way between two streams; returns how many attempts run on.
    async fn calm(&self, wait: Duration) -> anyhow::Result<usize> {
        if !self.has_nodes {
            return Ok(0);
        }
        let began = Instant::now();
        let mut first = None;
        loop {
            let mut nodes = self.api.ask::<NodesList>(Nothing {}).await?.read()?.nodes;
            nodes.retain(|node| node.state != "silent");
            let running = nodes.iter().flat_map(|node| node.queues.values()).map(|queue| queue.running).sum();
            let mut moving = 0;
            let names = self.api.client.names();
            for stream in [names.schedules_stream(), names.events_stream()] {
                moving += self.api.client.in_hands(&stream).await?;
            }
            let seen = nodes.into_iter().map(|node| (node.node, node.seen_at)).collect::<Vec<_>>();
            // What a node said before it was paused may be out of date.
            let is_old = |(node, at): &(String, Timestamp)| seen.iter().any(|(name, now)| name == node && now <= at);
            let is_fresh = !first.get_or_insert_with(|| seen.clone()).iter().any(is_old);
            if is_fresh && (running == 0 && moving == 0 || began.elapsed() >= wait) {
                return Ok(running);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Lets everything go on as it was before. What an operator has paused or resumed meanwhile stays so.
    async fn release(&self) {
        let mut failed = Vec::new();
        for stream in self.cut() {
            failed.extend(self.api.client.pause_consumers(&stream.name, None).await.err().map(anyhow::Error::from));
        }
        let mut listed = if self.queues.is_empty() { Ok(Vec::new()) } else { self.listed().await };
        // A node that is just starting again may be the only one.
        for _ in 0..LISTS {
            if listed.is_ok() {
                break;
            }
            tokio::time::sleep(LIST_AGAIN_AFTER).await;
            listed = self.listed().await;
        }
        let listed = listed.unwrap_or_else(|error| {
            failed.push(anyhow::Error::from(error));
            Vec::new()
        });
        let is_ours =
            |name: &Queue| listed.iter().any(|queue| queue.queue == *name && queue.paused_until == Some(self.until));
        let ours = self.queues.iter().filter(|(queue, _)| is_ours(queue));
        let resumed = ours.map(async |(queue, before)| {
            if let Some(before) = before.filter(|before| *before > now()) {
                return self.pause(queue, before).await;
            }
            let request = ResumeRequest { queue: Some(queue.clone()), job_type: None };
            self.api.ask::<QueuesResume>(request).await.map(drop).map_err(anyhow::Error::from)
        });
        failed.extend(join_all(resumed).await.into_iter().filter_map(Result::err));
        for error in failed {
            let (error, until) = (super::ended::text_of(&error), self.until);
            anstream::eprintln!("{PENDING}warning:{PENDING:#} {error}; what is still paused goes on at {until}");
        }
    }
}

async fn written(api: &Api, stream: &StoredStream, dir: &Path) -> anyhow::Result<StoredEntry> {
    let file = format!("{}.snapshot", stream.name);
    let snapshot = in_place(dir, &file, async |to| Ok(api.client.snapshot(stream, to).await?)).await?;
    say_done(&stream.name, snapshot.messages, snapshot.bytes);
    Ok(StoredEntry { stream: stream.name.clone(), file, snapshot })
}

/// Writes what fell due since the schedules were at that sequence.
async fn fired_since(api: &Api, schedules: &str, from: u64, dir: &Path) -> anyhow::Result<FiredFile> {
    let file = format!("{schedules}.fired");
    let lines = in_place(dir, &file, async |to| {
        let mut to = BufWriter::new(to);
        api.client.fired_since(from, |fired| writeln!(to, "{}", serde_json::to_string(fired)?)).await?;
        Ok(to.flush()?)
    });
    lines.await?;
    let (bytes, sha256) = checksum(File::open(dir.join(&file))?)?;
    Ok(FiredFile { file, bytes, sha256 })
}

/// Writes a file under another name first: under its own it is whole.
async fn in_place<T>(dir: &Path, name: &str, write: impl AsyncFnOnce(&File) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let (path, part) = (dir.join(name), dir.join(format!("{name}.part")));
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(&part).with_context(cannot)?;
    let written = write(&file).await?;
    file.sync_all().and_then(|()| fs::rename(&part, &path)).with_context(cannot)?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(cannot)?;
    Ok(written)
}

pub(crate) async fn restore(global: &Global, arguments: RestoreArguments) -> anyhow::Result<Ended> {
    let dir = &arguments.dir;
    let manifest = read(dir, &global.namespace())?;
    for StoredEntry { file, snapshot, .. } in &manifest.streams {
        check(dir, file, snapshot.bytes, &snapshot.sha256)?;
    }
    if let Some(FiredFile { file, bytes, sha256 }) = &manifest.fired {
        check(dir, file, *bytes, sha256)?;
    }
    let api = Api::connect(global).await?;
    let found = api.client.stored_streams().await?;
    let found: Vec<&str> = found.iter().map(|stream| stream.name.as_str()).collect();
    ensure!(found.is_empty(), "restore takes a server without streams of Longshore, and has {}", found.join(", "));
    match api.ask::<NodesList>(Nothing {}).await {
        Err(error) if error.message == NO_NODE => {}
        _ => bail!("nodes run on this server: stop them, and start them once all is restored"),
    }
    let (mut signals, mut begun) = (Signals::listen().context(UNHEARD)?, Vec::new());
    let open = tokio::select! {
        // First, so that it has begun: what it has begun is named.
        biased;
        open = filled(&api, &arguments, &manifest, &mut begun) => open,
        word = signals.next() => Err(anyhow::anyhow!("ended by {word}")),
    };
    let open =
        open.with_context(|| format!("not restored; before another try delete what is there of {}", begun.join(", ")))?;
    if open > 0 {
        eprintln!("{open} runs were submitted during the backup, their jobs are not in it: submit them again");
    }
    let (messages, _) = sums(&manifest.streams);
    let (streams, at) = (manifest.streams.len(), manifest.cut_at);
    output::say(&format!("restored {streams} streams, {messages} messages, as of {at}: start the nodes"))?;
    Ok(Ended::Success)
}

/// Restores the streams of a backup, each of which is in `begun` from then on; returns how many runs have no job in it.
async fn filled<'m>(
    api: &Api,
    RestoreArguments { dir, replicas }: &RestoreArguments,
    manifest: &'m Manifest,
    begun: &mut Vec<&'m str>,
) -> anyhow::Result<usize> {
    for StoredEntry { stream, file, snapshot } in &manifest.streams {
        begun.push(stream);
        let from = File::open(dir.join(file))?;
        let messages = api.client.restore(stream, snapshot, (*replicas).map(usize::from), from).await?;
        // They were paused when they were read.
        api.client.pause_consumers(stream, None).await?;
        say_done(stream, messages, snapshot.bytes);
    }
    if let Some(FiredFile { file, .. }) = &manifest.fired {
        for line in BufReader::new(File::open(dir.join(file))?).lines() {
            api.client.fire(serde_json::from_str(&line?)?).await?;
        }
    }
    Ok(api.client.unmark(manifest.marks).await?)
}

fn read(dir: &Path, namespace: &str) -> anyhow::Result<Manifest> {
    let path = dir.join(MANIFEST);
    let text = fs::read(&path).with_context(|| format!("{} is no backup: cannot read {MANIFEST}", dir.display()))?;
    let damaged = || format!("{} is damaged", path.display());
    let version = serde_json::from_slice::<serde_json::Value>(&text).with_context(damaged)?["version"].take();
    ensure!(version == VERSION, "{} has version {version}, this program reads {VERSION}", path.display());
    let manifest: Manifest = serde_json::from_slice(&text).with_context(damaged)?;
    let of = &manifest.namespace;
    ensure!(of == namespace, "it is a backup of namespace {of}, not of {namespace}: say --namespace {of}");
    Ok(manifest)
}

/// Whether a file is as it was written.
fn check(dir: &Path, file: &str, bytes: u64, sha256: &str) -> anyhow::Result<()> {
    let path = dir.join(file);
    let read = File::open(&path).and_then(checksum);
    let (found, sum) = read.with_context(|| format!("cannot read {}", path.display()))?;
    let is_whole = found == bytes && sum == sha256;
    ensure!(is_whole, "{} is damaged: its {found} bytes are not what was written", path.display());
    Ok(())
}

fn say_done(stream: &str, messages: u64, bytes: u64) {
    eprintln!("{stream}: {} messages, {} bytes", number(messages), number(bytes));
}

fn sums(entries: &[StoredEntry]) -> (String, String) {
    let sum = |of: fn(&Snapshot) -> u64| number(entries.iter().map(|entry| of(&entry.snapshot)).sum());
    (sum(|snapshot| snapshot.messages), sum(|snapshot| snapshot.bytes))
}
