//! The range over a real broker: the processes are killed with SIGKILL, and the broker and the
//! database crash.
//!
//! ```text
//!  producer ──commands──► broker ─► targets ─► database ─► relays ──facts──► broker ─┬─► board
//!                                                                                    └─► observer
//! ```
//!
//! Every process uses only parts of idem that every user can use: the consumer runtime, the relay,
//! and the broker adapters. A process that is killed is restarted. It continues from the state in
//! the broker and in the database; the producer also has a note in a file. At the end the
//! [`verdict`](mod@verdict) compares the tables with the facts that the observer received.
//!
//! The targets can also run without idem ([`LiveConfig::unprotected`]). Then the verdict must
//! report errors.

pub mod broker;
pub mod business;
pub mod config;
pub mod drain;
pub mod faults;
pub mod flaw;
pub mod place;
pub mod plan;
pub mod poison;
pub mod post;
pub mod processes;
pub mod report;
pub mod runner;
pub mod servers;
pub mod verdict;
pub mod work;

pub use config::{Field, Kind, LiveConfig};
pub use flaw::Flaw;
pub use post::{Post, Role};
pub use report::LiveReport;
pub use runner::{Look, run};
pub use servers::Server;
pub use verdict::LiveVerdict;
