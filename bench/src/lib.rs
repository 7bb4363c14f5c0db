//! The speed of idem, compared with hand-written alternatives.
//!
//! Each part starts its own cluster with `fsync` on, where each side has its own database. The
//! sides run alternately, round by round, so that noise affects both. A ratio is the median over
//! the rounds of the ratio of the two sides in one round. Every result is checked during the
//! measurement: a new id must be won, a duplicate must not be won, and each win makes one business
//! update.

mod batch;
mod broker;
mod clients;
mod durable;
mod footprint;
mod idem;
mod inbox;
mod load;
mod old_snapshot;
mod options;
mod outbox;
mod process;
mod profile;
pub mod protection;
mod relay;
mod report;
pub mod search_path;
mod server;
mod side;
mod throughput;
pub mod wire;

pub use options::{Options, Part};

use anyhow::Result;
use idem_cluster::Install;

use report::Table;

/// Runs the selected parts and prints a table for each. Returns whether every target was met.
///
/// # Errors
/// Fails when a server fails or a result is wrong, because the figures of a wrong run are
/// worthless.
pub fn run(options: &Options) -> Result<bool> {
    let install = Install::from_env()?;
    println!("{}", server::machine(&install)?);
    if options.quick {
        println!(
            "Quick run: small sizes and short rounds. \
             These figures show that the benchmark works, and not how fast idem is."
        );
    }
    if options.profile {
        return profile::run(&install, options).map(|()| true);
    }
    let mut met = true;
    for part in options.parts() {
        let tables: Vec<Table> = match part {
            Part::Claims => throughput::run(&install, options)?,
            Part::Storage => footprint::run(&install, options)?,
            Part::Batch => batch::run(&install, options)?,
            Part::OpenSnapshot => old_snapshot::run(&install, options)?,
            Part::Effects => outbox::run(&install, options)?,
            Part::Process => process::run(&install, options)?,
            Part::Consumer => broker::consume(&install, options)?,
            Part::Relay => broker::publish(&install, options)?,
            Part::Inbox => durable::run(&install, options)?,
            Part::InboxOpenSnapshot => durable::held::run(&install, options)?,
        };
        for table in tables {
            println!("\n{table}");
            met &= table.is_met();
        }
    }
    Ok(met)
}
