//! What the tests of idem share: one cluster for each test program, a database for each test,
//! sessions that record the notices of the server, pause points, and wrong clocks.
//!
//! ```no_run
//! # use idem_testkit::Database;
//! # async fn test() -> anyhow::Result<()> {
//! let db = Database::with_idem("claims").await?;
//! let session = db.connect().await?;
//! assert_eq!(session.text("SELECT idem_try_claim('m1', 'orders')").await?, "t");
//! assert_eq!(session.refused("SELECT idem_try_claim(NULL, 'orders')").await?.sqlstate, "22004");
//! # Ok(())
//! # }
//! ```

pub mod broker;
pub mod claimers;
pub mod clock;
mod database;
mod dump;
mod installation;
pub mod log;
pub mod names;
mod pause;
pub mod polls;
pub mod presence;
mod priority;
pub mod private_install;
pub mod proxy;
pub mod replica;
pub mod ring;
mod seed;
mod server;
mod session;
pub mod standby;
mod until;

pub use broker::source_ended;
pub use database::Database;
pub use dump::Dump;
pub use installation::FIX_INSTALLATION;
pub use pause::Pause;
pub use priority::prioritize;
pub use seed::seed;
pub use server::shared_cluster;
pub use session::{Refusal, Session};
pub use until::{DEADLINE, in_time, until};
