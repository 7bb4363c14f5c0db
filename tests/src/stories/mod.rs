//! The hard stories: work that cannot share the business transaction, done by processes that are killed at every step.
//!
//! A worker process reaches the database and the world outside through a [`Line`] each. The lines count what is said, turn by turn,
//! and at one turn the worker is killed with SIGKILL: before its request passes, in the middle of it, when the request was taken but
//! the answer did not pass, or when the answer did. No fault is built into the worker, and no turn is left out, because the turns are
//! counted and not listed. Then the message is delivered again, until a worker is done with it, and the world outside is asked what
//! has been done to it.

mod drill;
mod fate;
mod line;
pub mod outside;
mod speech;
pub mod work;
mod worker;

pub use drill::{Drill, Outcome};
pub use fate::{Fate, Moment, Point};
pub use line::{Line, Server};
pub use speech::Tongue;
pub use worker::{Ending, Worker};
