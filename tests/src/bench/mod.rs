//! How fast idem is, against what people write by hand.
//!
//! Each part starts a cluster of its own, with `fsync` on and both sides in it, each in its own
//! database. The sides take turns round by round, so that noise hits both; a ratio is the median
//! over the rounds of what the two did in the same round. Every answer is checked while it is
//! measured: a new id must be won, a duplicate must not, and each win makes one business update.

mod batch;
mod broker;
mod durable;
mod footprint;
mod ground;
mod idem;
mod inbox;
mod load;
mod old_snapshot;
mod options;
mod outbox;
mod process;
mod profile;
mod relay;
mod report;
mod side;
mod throughput;
pub mod wire;

pub use options::{Options, Part};

use anyhow::Result;
use idem_cluster::Install;

use report::Table;

/// Runs the parts that are asked for and prints a table for each; whether every target was met.
///
/// # Errors
/// When a server fails, or when an answer was wrong: figures of a run that was not right are worth
/// nothing.
pub fn run(options: &Options) -> Result<bool> {
    let install = Install::from_env()?;
    println!("{}", ground::machine(&install)?);
    if options.quick {
        println!(
            "Quick: small sizes and short rounds. These figures show that the benchmark works, not how fast idem is."
        );
    }
    if options.profile {
        return profile::run(&install, options).map(|()| true);
    }
    let mut met = true;
    for part in options.parts() {
        let tables: Vec<Table> = match part {
            Part::A => throughput::run(&install, options)?,
            Part::B => footprint::run(&install, options)?,
            Part::C => batch::run(&install, options)?,
            Part::D => old_snapshot::run(&install, options)?,
            Part::E => outbox::run(&install, options)?,
            Part::F => process::run(&install, options)?,
            Part::G => broker::consume(&install, options)?,
            Part::H => broker::publish(&install, options)?,
            Part::I => durable::run(&install, options)?,
            Part::J => durable::held::run(&install, options)?,
        };
        for table in tables {
            println!("\n{table}");
            met &= table.is_met();
        }
    }
    Ok(met)
}
