//! A campaign: the live range under fault injection, with a ledger of the results.
//!
//! ```text
//!  producer ─► [proxy] ─► broker ─► [proxy] ─► consumers ─► [proxy] ─► primary ══► standby
//!                                                              ▲ promotion switches the proxy
//!  campaign: starts and kills the processes, injects one fault after the other, drains, checks
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`config`] | the settings of a campaign |
//! | [`plan`] | the order of the faults, from the seed |
//! | [`faults`] | one file for each kind of fault: inject, hold, heal |
//! | [`campaign`] | the run: processes, kills and faults until every minimum is met |
//! | [`drain`] | the end: no more faults, and all messages that were sent are handled |
//! | [`checker`] | compares the tables, the log of the broker and the logs of the servers |
//! | [`ledger`] | the printed rows: faults with their minimum, traffic, errors |
//! | [`site`] | the servers of a campaign: primary, standby, broker, two proxies |
//! | [`pair`] | the primary and its synchronous standby; promotion and rebuild |
//! | [`schema`] | the tables of a campaign |
//! | [`disk`] | a disk that can be filled |
//! | [`Clock`](idem_testkit::clock::Clock) | a wall clock that jumps |
//! | [`proxy`] | a network that can be interrupted |
//! | [`progress`] | the streams of the processes, each of which must continue after a fault |
//! | [`server_log`] | the format of the server logs, and the maintenance processes in them |
//! | [`watch`](mod@watch) | observations during the run: maintenance processes and statistics |
//!
//! A campaign uses the processes, the messages, and the checks of
//! [`range::live`](idem_demo::range::live). Its commands are shots at targets and moves of targets.
//! The result of a shot is published as a fact, the board counts the hits, and a letter is written
//! for each hit. A campaign adds clients that need no broker: they claim the same ids concurrently,
//! hold leases that are too short, and record numbered steps.

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
