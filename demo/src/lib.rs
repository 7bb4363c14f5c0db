//! The demo, the first thing that a newcomer runs: the errors of three kinds of handlers under the
//! same faulty traffic, then what protection costs, then a summary.
//!
//! The two parts are separate, because the handlers of the first part do different work: those
//! without idem have no outbox and lose messages. So their speed is not compared. The second part
//! compares contestants that do the same work.
//!
//! Reports go to the standard output, and the progress goes to the standard error.

mod live;
pub mod range;
mod summary;
mod table;

use anyhow::Result;
use clap::Args;
use idem_bench::protection;
use live::{CostView, ErrorsView};
use summary::Summary;

/// The settings of the demo.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The traffic and the faults of the first part.
    #[command(flatten)]
    pub traffic: range::Config,
    /// The measurement of the second part.
    #[command(flatten)]
    pub cost: protection::Config,
}

const ERRORS: &str = "\
1 of 2: errors

Players shoot at targets, and the targets move. The broker delivers some
messages again, late or in another order. Consumers are killed and start again.
Three kinds of handlers get the same messages:

  unprotected   treat each delivery as a new message
  by id         have unique keys, and a filter that drops ids that it has seen
  idem          claim each message in the transaction of their writes
";

const COST: &str = "
2 of 2: cost

The handlers above do different work, so their speed cannot be compared. This
part compares transactions that do the same work, without faults: a business
transaction alone, with an inbox and an outbox by hand, and with idem.
";

/// Runs the demo and prints its reports. Returns whether idem made no error.
///
/// # Errors
/// Fails when the database cannot be reached or has no extension idem, and when the measurement
/// finds missing rows.
pub async fn run(options: &Options) -> Result<bool> {
    println!("{ERRORS}");
    let view = ErrorsView::new()?;
    let errors = range::run_watched(&options.traffic, |watch| view.follow(watch)).await;
    view.close();
    let errors = errors?;
    print!("{errors}");

    println!("{COST}");
    let mut view = CostView::new(options.cost.rounds)?;
    let cost = protection::run(&options.traffic.database_url, &options.cost, |progress| {
        view.show(&progress);
    })
    .await;
    view.close();
    let cost = cost?;
    println!("{cost}");

    print!(
        "{}",
        Summary {
            errors: &errors,
            cost: &cost
        }
    );
    Ok(errors.idem_is_right())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: Options,
    }

    /// The settings of both parts have different names on the command line.
    #[test]
    fn command_line_has_the_settings_of_both_parts() {
        CommandLine::command().debug_assert();
        let line = "demo --database-url x --shots 50 --cost-rounds 2";
        let options = CommandLine::parse_from(line.split(' ')).options;
        assert_eq!((options.traffic.shots, options.cost.rounds), (50, 2));
    }
}
