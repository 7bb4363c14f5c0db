//! The speed of idem, compared with hand-written alternatives.
//!
//! Each part starts its own cluster with `fsync` on, where each side has its own database. The
//! sides run alternately, round by round, so that noise affects both, except in the long run. A
//! ratio is the median over the rounds of the ratio of the two sides in one round. Every result is
//! checked during the measurement: a new id must be won, a duplicate must not be won, and each win
//! makes one business update.

mod batch;
#[cfg(feature = "brokers")]
mod broker;
mod clients;
mod durable;
mod flat;
mod footprint;
mod idem;
mod in_server;
mod inbox;
mod load;
mod long_run;
mod options;
mod outbox;
mod pages;
mod pgbench;
mod pgq;
mod pipelined;
mod plot;
mod process;
mod profile;
pub mod protection;
mod record;
mod relay;
mod report;
mod results;
pub mod search_path;
mod server;
mod side;
mod throughput;
mod wal;
pub mod wire;

pub use options::{Options, Part};

use anyhow::Result;
use idem_cluster::Install;

use report::Figures;

/// Runs the selected parts and prints a table for each. Returns whether every target was met, also
/// the targets of kept figures that are written.
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
        let figures: Figures = match part {
            Part::Process => process::run(&install, options)?.into(),
            Part::Claims => throughput::run(&install, options)?.into(),
            Part::InServer => in_server::run(&install, options)?.into(),
            Part::Flat => flat::run(&install, options)?.into(),
            Part::Wal => wal::run(&install, options)?,
            Part::Pipelined => pipelined::run(&install, options)?.into(),
            Part::LongRun => long_run::run(&install, options)?,
            Part::Storage => footprint::run(&install, options)?.into(),
            Part::Batch => batch::run(&install, options)?.into(),
            Part::Effects => outbox::run(&install, options)?.into(),
            Part::Pgq => pgq::run(&install, options)?.into(),
            #[cfg(feature = "brokers")]
            Part::Consumer => broker::consume(&install, options)?.into(),
            #[cfg(feature = "brokers")]
            Part::Relay => broker::publish(&install, options)?.into(),
            Part::Inbox => durable::run(&install, options)?.into(),
        };
        for table in &figures.tables {
            println!("\n{table}");
            met &= table.is_met();
        }
        if !options.quick {
            results::save(&options.results, part, &figures)?;
        }
    }
    if options.write {
        let kept = results::read(&options.results)?;
        pages::write(&kept)?;
        plot::draw(
            &kept,
            &idem_cluster::workspace_root().join("docs/benchmarks"),
        )?;
        for kept in &kept {
            met &= kept.figures.tables.iter().all(report::Table::is_met);
        }
    }
    Ok(met)
}
