//! Makes a record that exceeds its size limit smaller: the data that the protocol and the events need stays, texts go.

use super::Run;

/// The number of bytes that are left of an error message, first and, if that is not enough, last.
const CUTS: [usize; 3] = [200, 40, 0];

impl Run {
    /// Removes the least important data: the texts of earlier errors, then attempts of earlier rounds, the oldest half
    /// of them at a time, then result and progress, then more of the texts. Returns false if nothing is left to remove.
    ///
    /// The attempts of the present round stay, because its events are derived from them.
    pub fn shorten(&mut self) -> bool {
        self.cut_messages(CUTS[0])
            || self.forget_earlier()
            || self.forget_values()
            || self.cut_messages(CUTS[1])
            || self.cut_messages(CUTS[2])
    }

    fn cut_messages(&mut self, to: usize) -> bool {
        // The last message explains why the run is in its state; it goes only when all others have gone.
        let count = self.attempts.len();
        let earlier = if to == CUTS[2] { count } else { count.saturating_sub(1) };
        let errors = self.attempts[..earlier].iter_mut().filter_map(|attempt| attempt.error.as_mut());
        let mut cut = false;
        for error in errors.filter(|error| error.message.len() > to) {
            error.message.truncate(error.message.floor_char_boundary(to));
            cut = true;
        }
        cut
    }

    fn forget_earlier(&mut self) -> bool {
        let round = self.round;
        let earlier = self.attempts.iter().take_while(|attempt| attempt.round != round).count();
        self.attempts.drain(..earlier.div_ceil(2));
        earlier > 0
    }

    fn forget_values(&mut self) -> bool {
        let bytes =
            self.result.as_ref().map(|result| result.get().len()).or(self.result_base64.as_ref().map(String::len));
        let any = bytes.is_some() || self.progress.is_some();
        if let Some(bytes) = bytes {
            self.result_bytes = Some(bytes as u64);
        }
        (self.result, self.result_base64, self.progress) = (None, None, None);
        any
    }
}

#[cfg(test)]
mod tests {
    use crate::settlement::Settlement;
    use crate::{ErrorKind, Failure, Job, JobType, Priority, Queue, Run, RunId, Tenant, Timestamp};

    fn worn_out(rounds: u32, attempts: u32) -> Run {
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("a").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        };
        let at = Timestamp::from_millis(1);
        let mut run = Run::new(&job, attempts, at);
        // The longest it can be in the record: each of these characters takes six bytes there.
        let failure = || Failure::new(ErrorKind::Retryable, "\u{1}".repeat(5_000));
        for round in 1..=rounds {
            for attempt in 1..=attempts {
                run.begin(attempt, &"node".into(), at);
                let failure = failure();
                let last = attempt == attempts;
                let settlement = if last { Settlement::Dead { failure } } else { Settlement::Retry { at, failure } };
                run.settle(settlement, at);
            }
            if round < rounds {
                run.replay(at);
            }
        }
        run
    }

    #[test]
    fn whatever_a_run_went_through_fits_in_the_end() {
        let mut run = worn_out(3, 1_000);
        let size = |run: &Run| serde_json::to_string(run).unwrap().len();
        assert!(size(&run) > 2_000_000);
        while size(&run) > 500_000 {
            assert!(run.shorten(), "{} bytes are left", size(&run));
        }
        assert_eq!((run.round, run.attempts_of_round().count()), (3, 1_000), "the present round is whole");
        assert_eq!(run.error.as_ref().unwrap().message.len(), 4_096);
        while run.shorten() {}
        assert!(size(&run) < 300_000, "{}", size(&run));
    }
}
