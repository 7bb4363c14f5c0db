//! A campaign: the live range under fault injection, with a ledger of the results.
//!
//! ```text
//!  producer ─► [proxy] ─► broker ─► [proxy] ─► consumers ─► [proxy] ─► primary ══► standby
//!                                                              ▲ promotion switches the proxy
//!  campaign: starts and kills the processes, injects one fault after the other, drains, checks
//! ```
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
mod named;
pub mod pair;
pub mod plan;
pub mod progress;
pub mod schema;
pub mod server_log;
pub mod site;
pub mod watch;

pub use campaign::run;
pub use config::CampaignConfig;
pub use ledger::Ledger;
