//! The range over a real broker: real processes that are killed with SIGKILL, a broker and a
//! database that crash.
//!
//! ```text
//!  producer ──commands──► broker ──► targets ──► database ──► relays ──facts──► broker ──► board
//!                                                                                     └──► observer
//! ```
//!
//! Every process does its work with what a user has: the consumer runtime, the relay, the adapters
//! of the brokers. Whoever is killed is started anew, and goes on with nothing but what the broker,
//! the database and (the producer) a note of its own still know. In the end the
//! [`verdict`](mod@verdict) holds the tables and what the observer heard against each other.
//!
//! The targets can also work without idem ([`LiveConfig::unprotected`]): the verdict must see that.

pub mod broker;
pub mod business;
pub mod config;
pub mod crew;
pub mod flaw;
pub mod mishaps;
pub mod place;
pub mod plan;
pub mod poison;
pub mod report;
pub mod servers;
pub mod stage;
pub mod verdict;
pub mod work;

pub use config::{Field, Kind, LiveConfig};
pub use flaw::Flaw;
pub use report::LiveReport;
pub use servers::Server;
pub use stage::{Look, run};
pub use verdict::LiveVerdict;
pub use work::{Post, Role};
