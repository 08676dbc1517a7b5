//! The signals that ask a node to end, and those that must not end it. What follows from them is not decided here.
//!
//! A service gets SIGTERM from its manager, a program in a terminal SIGINT, SIGQUIT or, if the terminal goes, SIGHUP.
//! Left alone, each of these and SIGUSR1 and SIGUSR2 would end the process at once: its jobs would wait for their
//! leases and use up an attempt.

use std::future::poll_fn;
use std::task::Poll;
use std::{fmt, io, process};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks for an end.
#[derive(Debug, Clone, Copy)]
pub struct Word {
    name: &'static str,
    number: i32,
}

const HANG_UP: Word = Word { name: "SIGHUP", number: 1 };
const INTERRUPT: Word = Word { name: "SIGINT", number: 2 };
const QUIT: Word = Word { name: "SIGQUIT", number: 3 };
const TERMINATE: Word = Word { name: "SIGTERM", number: 15 };

impl Word {
    /// Ends the process as a shell reports an end by this signal.
    pub fn end_at_once(self) -> ! {
        process::exit(128 + self.number)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Listens for the signals that ask for an end.
#[derive(Debug)]
pub struct Signals {
    ends: Vec<(Signal, Word)>,
}

impl Signals {
    /// Begins to listen; from then on no other common signal ends the process, either.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn listen() -> io::Result<Self> {
        // Once listened to, they stay without effect, also when nobody asks for them.
        for other in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
            drop(signal(other)?);
        }
        // `nohup` has this one ignored: listening to it would undo that.
        let hang_up = (!ignores(HANG_UP)).then_some(HANG_UP);
        let words = hang_up.into_iter().chain([INTERRUPT, QUIT, TERMINATE]);
        let ends = words.map(|word| Ok((signal(SignalKind::from_raw(word.number))?, word)));
        Ok(Self { ends: ends.collect::<io::Result<_>>()? })
    }

    /// The next one.
    pub async fn next(&mut self) -> Word {
        poll_fn(|context| {
            let mut ends = self.ends.iter_mut();
            let came = ends.find_map(|(signal, word)| signal.poll_recv(context).is_ready().then_some(*word));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether the process was started with the signal ignored; only Linux says so to safe code.
fn ignores(word: Word) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (word.number - 1)) != 0
}
