//! The hard stories: work that cannot share the business transaction, done by processes that are
//! killed at every step.
//!
//! A worker process reaches the database and the world outside through a [`Line`] each. The lines
//! understand what is said, count each request (to the database each statement, also of a
//! pipeline), and at one of them the worker is killed with SIGKILL: before it passes, in the middle
//! of it, when it was answered but the answer did not pass, or when the answer did. No fault is
//! built into the worker, and no request is left out, because they are counted and not listed. Then
//! the message is delivered again, until a worker is done with it, and the world outside is asked
//! what has been done to it.
//!
//! ```text
//!            ┌──line──► PostgreSQL
//!  worker ───┤
//!            └──line──► card gateway, carrier, mail server
//! ```
//!
//! Other workers are not killed but paused, or believe in a wrong time
//! ([`Clock`](crate::clock::Clock)).

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
