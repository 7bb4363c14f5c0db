//! A campaign: the live range under fault injection, and a ledger of what came of it.
//!
//! ```text
//!  producer ─► [proxy] ─► broker ─► [proxy] ─► consumers ─► [proxy] ─► primary ══synchronous══► standby
//!                                                                        ▲ promotion switches the proxy
//!  campaign: starts and kills the processes, injects one fault after the other, drains, checks
//! ```
//!
//! | module | idea |
//! |---|---|
//! | [`config`] | what a campaign is started with |
//! | [`plan`] | which fault comes next, from the seed |
//! | [`faults`] | one file for each kind of fault: inject, hold, heal |
//! | [`campaign`] | the run: processes, kills and faults until the time is up and every minimum is met |
//! | [`drain`] | the end: faults are over, everything that was sent is handled |
//! | [`checker`] | the tables, the log of the broker and the log of the server, held against each other |
//! | [`ledger`] | the rows that are printed: faults with their minimum, traffic, errors |
//! | [`site`] | what runs: two servers, a broker, two proxies |
//! | [`pair`] | the primary and its synchronous standby; promotion and rebuild |
//! | [`disk`], [`Clock`](crate::clock::Clock), [`proxy`] | a disk that can be full, a clock that jumps, a network that can be cut |
//! | [`progress`] | the streams of the processes, each of which goes on after a fault |
//! | [`server_log`] | the log of the servers, and which of its processes are the maintenance |
//! | [`watch`](mod@watch) | what is noted while it runs: processes of the maintenance, statistics, server logs |
//!
//! Processes, messages and the verdict about shots and facts are those of
//! [`range::live`](crate::range::live). A campaign adds clients that need no broker: claims of the
//! same ids at the same time, leases that are too short, numbered steps.

pub mod campaign;
pub mod checker;
pub mod config;
pub mod disk;
pub mod drain;
pub mod faults;
pub mod ledger;
pub mod pair;
pub mod plan;
pub mod progress;
pub mod proxy;
pub mod schema;
pub mod server_log;
pub mod site;
pub mod watch;

pub use campaign::run;
pub use config::CampaignConfig;
pub use ledger::Ledger;
