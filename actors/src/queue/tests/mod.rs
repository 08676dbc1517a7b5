//! From the lanes to a worker, without a server: a test has jobs arrive in a queue's buffer, and sees which job starts
//! next, which is parked, which waits and which goes back.

mod buffer;
mod dispatcher;
mod gated;
mod scene;
