//! The command line of this workspace: set-up, demo, test, chaos, bench, psql, package and others.
//!
//! Every command first does the missing steps that it depends on, so that a fresh clone needs only
//! one command. A second run skips these steps and starts in seconds. All generated files are under
//! `target`.

mod bench;
mod build;
mod chaos;
mod chroot;
mod context;
mod debian;
mod demo;
mod install_script;
mod lint_modules;
mod package;
mod psql;
mod server;
mod setup;
mod site;
mod step;
mod suite;
mod test;
mod tool;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::context::Context;
use crate::suite::Suite;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Builds, tests, measures and packages idem",
    version
)]
struct Arguments {
    /// The Debian suite, which decides the versions of PostgreSQL and of all other packages. For a
    /// suite that is not the suite of this machine, the command runs in a chroot, which needs root
    /// [default: the suite of this machine, or bookworm]
    #[arg(long, global = true)]
    suite: Option<Suite>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing: Debian packages and a private copy of PostgreSQL
    Setup,
    /// Build the extension and install it in the private copy of PostgreSQL
    Build,
    /// Run the demo: the errors of unprotected handlers, handlers that use ids, and idem under the
    /// same faulty traffic; then what protection costs
    Demo {
        /// Run the demo over a real broker, rabbitmq or nats, with processes that are killed; all
        /// handlers use idem then
        #[arg(long)]
        broker: Option<String>,
        /// Arguments for the demo; `cargo xtask demo -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the tests of CI
    Test {
        /// `quick`: unit tests, isolation tests, and one test for each invariant. `everything`:
        /// also long stress tests, ignored tests, PgBouncer and the other suites (needs root). The
        /// name of a package or of a test binary: its tests. Any other text: the tests with this
        /// text in their name
        tests: Option<String>,
        /// Run the tests this many times, each time with another seed, until a run fails
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        repeat: u64,
    },
    /// Run a campaign of fault injection; prints a ledger and fails when the ledger has an error or
    /// too few faults (needs root)
    Chaos {
        /// The shortest time of fault injection, in minutes; 1 to 240
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=240))]
        minutes: u32,
        /// The broker that carries the messages: rabbitmq or nats
        #[arg(long, default_value = "rabbitmq")]
        broker: String,
        /// The seed of the traffic and of the order of the faults
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Plant a known bug, which the ledger must report: ack-before-commit, reject-drops,
        /// skipped-fence, ignored-token or stuck-observer
        #[arg(long = "break")]
        flaw: Option<String>,
    },
    /// Run the benchmarks
    Bench {
        /// Arguments for the benchmarks; `cargo xtask bench -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Open psql in a throwaway cluster that has the extension
    Psql {
        /// The database, which is created with the extension
        #[arg(default_value = "idem")]
        database: String,
    },
    /// Make a directory tree ready for `/`, and Debian packages of the extension and of idem-relay
    Package,
    /// Make a book of the documentation
    Site,
    /// Fail when files of a published crate, or of the extension, import each other in a circle
    LintModules,
    /// Write the install script of a release to sql/install: it must not change any more
    Snapshot,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let suite = arguments
        .suite
        .or_else(Suite::of_this_machine)
        .unwrap_or(Suite::Bookworm);
    if chroot::is_needed(suite) {
        return chroot::run(suite);
    }
    let context = Context::new(suite)?;
    match arguments.command {
        Command::Setup => setup::setup(&context),
        Command::Build => build::build(&context).map(drop),
        Command::Demo { broker, arguments } => demo::demo(&context, broker.as_deref(), &arguments),
        Command::Test { tests, repeat } => test::test(&context, tests.as_deref(), repeat),
        Command::Chaos {
            minutes,
            broker,
            seed,
            flaw,
        } => {
            let mut arguments = vec![format!("--broker={broker}"), format!("--seed={seed}")];
            arguments.extend(flaw.map(|flaw| format!("--break={flaw}")));
            chaos::chaos(&context, minutes, &arguments)
        }
        Command::Bench { arguments } => bench::bench(&context, &arguments),
        Command::Psql { database } => psql::psql(&context, &database),
        Command::Package => package::package(&context),
        Command::Site => site::site(&context),
        Command::LintModules => lint_modules::lint(&context),
        Command::Snapshot => {
            let path = install_script::release(&context.root)?;
            eprintln!("wrote {}: the version is released", path.display());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_receives_its_arguments_except_the_suite() {
        for line in [
            "xtask --suite trixie demo --shots 3",
            "xtask demo --suite trixie --shots 3",
            "xtask demo --suite trixie -- --shots 3",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo {
                arguments: passed_on,
                broker: None,
            } = arguments.command
            else {
                panic!("{line} must be parsed as a demo")
            };
            assert_eq!(arguments.suite, Some(Suite::Trixie), "{line}");
            assert_eq!(passed_on.join(" "), "--shots 3", "{line}");
        }
    }

    #[test]
    fn chaos_needs_minutes_and_has_defaults_for_the_rest() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        assert!(parse("xtask chaos").is_err());
        assert!(parse("xtask chaos --minutes 241").is_err());
        let Command::Chaos {
            minutes,
            broker,
            seed,
            flaw,
        } = parse("xtask chaos --minutes 60 --break skipped-fence")
            .unwrap()
            .command
        else {
            panic!("the line must be parsed as a campaign")
        };
        assert_eq!((minutes, broker.as_str(), seed), (60, "rabbitmq", 1));
        assert_eq!(flaw.as_deref(), Some("skipped-fence"));
    }

    #[test]
    fn unknown_suite_is_an_error_that_names_the_suites() {
        let error = Arguments::try_parse_from(["xtask", "--suite", "buster", "test"])
            .err()
            .unwrap();
        let message = error.to_string();
        assert!(
            message.contains("invalid value 'buster' for '--suite <SUITE>'"),
            "{message}"
        );
        assert!(
            message.contains("possible values: bookworm, trixie, sid"),
            "{message}"
        );
    }

    #[test]
    fn demo_over_a_broker_receives_its_arguments() {
        for line in [
            "xtask demo --broker nats --messages 3",
            "xtask demo --broker=nats -- --messages 3",
            "xtask demo --broker nats",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo {
                broker: Some(broker),
                arguments: passed_on,
            } = arguments.command
            else {
                panic!("{line} must be parsed as a demo over a broker")
            };
            let rest = if line.ends_with('3') {
                "--messages 3"
            } else {
                ""
            };
            assert_eq!(
                (broker.as_str(), passed_on.join(" ").as_str()),
                ("nats", rest),
                "{line}"
            );
        }
    }
}
