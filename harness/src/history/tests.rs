//! Each kind of breach is seeded, and the checker must find exactly that one; sound histories, written or drawn at
//! random, must pass.

mod drawn;
mod from_words;
mod leases;
mod read;
mod seeded;
