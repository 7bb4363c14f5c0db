//! The shooting range: a demo and a test of duplicates that are processed after the state changed.
//!
//! Players fire at targets (`FireAt`, with an attempt id), and targets move (`MoveTarget`). A shot
//! hits when the target is at the aimed position at the time when the message is *processed*. So a
//! duplicate of `FireAt` that is processed after a `MoveTarget` can have another result than the
//! first delivery. Then the published facts say that one attempt both hit and missed. A leader
//! board counts the hits.
//!
//! The same [`traffic`] goes through the same faulty [`transport`] to three [`System`]s, which
//! differ only in their [`handlers`]. The [`verdict`] counts the errors of each system.
//!
//! ```no_run
//! # async fn range() -> anyhow::Result<()> {
//! use idem_demo::range::{self, Config};
//!
//! let report = range::run(&Config::new("host=/run/postgresql dbname=idem user=postgres")).await?;
//! println!("{report}");
//! assert!(report.idem_is_right());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Trial`] can run in parts, for example to restart the server between two parts. The module
//! [`live`] has the same traffic over a real broker, with processes that are killed.

pub mod business;
pub mod config;
pub mod consumer;
pub mod fate;
pub mod handlers;
pub mod hazard;
#[cfg(feature = "brokers")]
pub mod live;
pub mod message;
pub mod observer;
pub mod relay;
pub mod report;
pub mod session;
pub mod system;
pub mod traffic;
pub mod transport;
pub mod trial;
pub mod trial_state;
pub mod verdict;

pub use config::{Config, Rates};
pub use report::{Report, SystemReport};
pub use system::System;
pub use trial::{Trial, Until, Watch};
pub use verdict::Verdict;

use anyhow::Result;

/// Runs the whole traffic on every system, one after the other, so that the systems do not slow
/// each other down.
pub async fn run(config: &Config) -> Result<Report> {
    run_watched(config, drop).await
}

/// Runs like [`run`], with a progress display: `watch` is called at the start of each trial, and
/// the value that it returns is dropped at the end of the trial.
pub async fn run_watched<G>(config: &Config, mut watch: impl FnMut(Watch) -> G) -> Result<Report> {
    let mut systems = Vec::new();
    for system in System::ALL {
        let mut trial = Trial::prepare(config, system).await?;
        let display = watch(trial.watch());
        trial.play(Until::Drained).await?;
        drop(display);
        systems.push(trial.report().await?);
    }
    Ok(Report {
        config: config.clone(),
        systems,
    })
}
