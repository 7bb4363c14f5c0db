//! The shooting range: the story of a duplicate that finds a changed world.
//!
//! Players fire at targets (`FireAt`, with an attempt id), targets move (`MoveTarget`), and whether
//! a shot hit depends on where the target is when the message is *processed*. So a duplicate of
//! `FireAt` that comes after a `MoveTarget` can decide otherwise than the first, and the world
//! hears that one attempt both hit and missed. A leader board counts the hits.
//!
//! The same [`traffic`] goes through the same faulty [`transport`] to three [`System`]s, which
//! differ in nothing but their [`handlers`], and [`verdict`] says what came of it.
//!
//! ```no_run
//! # async fn range() -> anyhow::Result<()> {
//! use idem_tests::range::{self, Config};
//!
//! let report = range::run(&Config::new("host=/run/postgresql dbname=idem user=postgres")).await?;
//! println!("{report}");
//! assert!(report.idem_is_right());
//! # Ok(())
//! # }
//! ```
//!
//! Who wants to stop in the middle, to restart the server for one, plays a [`Trial`] in parts. The
//! same story over a real broker, with processes that are killed, is in [`live`].

pub mod business;
pub mod config;
pub mod consumer;
pub mod fate;
pub mod handlers;
pub mod hazard;
pub mod leader_board;
pub mod live;
pub mod message;
pub mod observer;
pub mod relay;
pub mod report;
pub mod session;
pub mod traffic;
pub mod transport;
pub mod trial;
pub mod verdict;
pub mod world;

pub use config::{Config, Rates};
pub use handlers::System;
pub use report::{Report, SystemReport};
pub use trial::{Trial, Until, Watch};
pub use verdict::Verdict;

use anyhow::Result;

/// Plays the whole traffic to every system, one after the other so that none slows another down.
pub async fn run(config: &Config) -> Result<Report> {
    run_watched(config, drop).await
}

/// The same before an audience: `watch` is called at the start of each trial, and what it answers
/// is dropped at its end.
pub async fn run_watched<G>(config: &Config, mut watch: impl FnMut(Watch) -> G) -> Result<Report> {
    let mut systems = Vec::new();
    for system in System::ALL {
        let mut trial = Trial::prepare(config, system).await?;
        let audience = watch(trial.watch());
        trial.play(Until::Drained).await?;
        drop(audience);
        systems.push(trial.report().await?);
    }
    Ok(Report {
        config: config.clone(),
        systems,
    })
}
