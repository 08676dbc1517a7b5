//! Makes a record that exceeds its size limit smaller: the data that the protocol and the events need stays, texts go.

use super::{Run, State};

/// The number of bytes that are left of an error message, first and, if that is not enough, last.
const CUTS: [usize; 3] = [200, 40, 0];

impl Run {
    /// Removes the least important data: the handlers' log, the list of steps, the texts of earlier errors, then
    /// attempts of earlier rounds, the oldest half of them at a time, then result and progress, then more of the texts.
    /// Returns false if nothing is left to remove.
    ///
    /// The attempts of the present round stay, because its events are derived from them.
    pub fn shorten(&mut self) -> bool {
        !std::mem::take(&mut self.log).is_empty()
            || !std::mem::take(&mut self.steps).is_empty()
            || self.cut_messages(CUTS[0])
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
        let had_progress = self.progress.take().is_some();
        let had_result = if let State::Completed { result, .. } = &mut self.state { result.forget() } else { false };
        had_progress || had_result
    }
}
