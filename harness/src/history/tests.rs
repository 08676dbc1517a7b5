//! Every kind of breach is seeded and must be the one found; sound histories, told and drawn, must pass.

mod drawn;
mod leases;
mod read;
mod seeded;
mod teller;
