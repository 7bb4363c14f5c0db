//! The hard stories: tests of work outside the business transaction. The worker processes are
//! killed at every request.
//!
//! A worker process connects to the database and to an external service through one proxy each.
//! The proxies parse the protocols and count each request, and in a pipeline to the
//! database each statement. At one request the worker is killed with SIGKILL: before the request is
//! forwarded, after half of it, before the response is forwarded, or after the response. The worker
//! contains no fault injection. The tests have no list of requests. They count the requests of a
//! worker, so no request is omitted. Then the message is redelivered until a worker has finished
//! it, and the test reads from the external service how often the service executed the request.
//!
//! ```text
//!            ┌──proxy──► PostgreSQL
//!  worker ───┤
//!            └──proxy──► card gateway, carrier, mail server
//! ```
//!
//! Other workers are not killed but paused, or have a wrong wall clock
//! ([`Clock`](idem_testkit::clock::Clock)).

mod drill;
mod fate;
mod line;
pub mod outside;
mod parser;
pub mod work;
mod worker;

pub use drill::{Drill, Outcome};
pub use fate::{Fate, Moment, Point};
pub use worker::{Ending, Worker};
