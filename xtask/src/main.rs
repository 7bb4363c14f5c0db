//! What a person types: set-up, demo, test, chaos, bench, psql, package.
//!
//! Every command first does what is missing before it, so that a fresh clone needs one command and
//! a second run starts in seconds. Everything that is made is under `target`.

mod bench;
mod build;
mod chaos;
mod chroot;
mod context;
mod demo;
mod lint_language;
mod package;
mod psql;
mod server;
mod setup;
mod snapshot;
mod soak;
mod step;
mod suite;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::context::Context;
use crate::suite::Suite;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Everything there is to do with idem",
    version
)]
struct Arguments {
    /// The Debian suite, which decides the versions of PostgreSQL and of all other packages. A
    /// suite that is not this machine's runs in a chroot, which needs root [default: this
    /// machine's, or bookworm]
    #[arg(long, global = true)]
    suite: Option<Suite>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing: Debian packages, cargo-pgrx, a private copy of PostgreSQL
    Setup,
    /// Build the extension into the private copy of PostgreSQL
    Build,
    /// The shooting range: the same traffic without idem, with half of it, and with all of it
    Demo {
        /// Over a real broker, rabbitmq or nats, with processes that are killed; nobody plays
        /// without idem then
        #[arg(long)]
        broker: Option<String>,
        /// Passed on; `cargo xtask demo -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The tests that CI runs
    Test {
        /// Only tests whose name contains this; `everything` adds long stress, ignored tests,
        /// PgBouncer and the other suites (needs root)
        filter: Option<String>,
    },
    /// Run tests again and again, without retries, and keep a ledger by commit in target/soak
    Soak {
        /// Only tests whose name contains one of these
        names: Vec<String>,
        /// How many runs in a row must pass; runs of this commit that passed before count
        #[arg(long, default_value_t = 20)]
        runs: u32,
    },
    /// A campaign of fault injection, which prints a ledger and fails when that is red (needs root)
    Chaos {
        /// How long faults are injected, at least; 1 to 240
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=240))]
        minutes: u32,
        /// What the messages travel over: rabbitmq or nats
        #[arg(long, default_value = "rabbitmq")]
        broker: String,
        /// Chooses the traffic and the order of the faults
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Plants a known bug, which the ledger must report: ack-before-commit, reject-drops,
        /// skipped-fence, ignored-token or stuck-observer
        #[arg(long = "break")]
        flaw: Option<String>,
    },
    /// The benchmarks
    Bench {
        /// Passed on; `cargo xtask bench -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// A shell in a throwaway cluster that has the extension
    Psql {
        /// The database, created with the extension in it
        #[arg(default_value = "idem")]
        database: String,
    },
    /// A directory tree ready for `/`, and a Debian package made from it
    Package,
    /// Count unclear words, long lines and long test names, and fail above the limits
    LintLanguage,
    /// Write the install script of this version to sql/install, once a release
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
        Command::Test { filter } => test::test(&context, filter.as_deref()),
        Command::Soak { names, runs } => soak::soak(&context, names, runs),
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
        Command::LintLanguage => lint_language::lint(&context),
        Command::Snapshot => snapshot::write(&context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_after_demo_are_its_own_except_the_suite() {
        for line in [
            "xtask --suite trixie demo --players 3",
            "xtask demo --suite trixie --players 3",
            "xtask demo --suite trixie -- --players 3",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo {
                arguments: passed_on,
                broker: None,
            } = arguments.command
            else {
                panic!("{line} is a demo")
            };
            assert_eq!(arguments.suite, Some(Suite::Trixie), "{line}");
            assert_eq!(passed_on.join(" "), "--players 3", "{line}");
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
            panic!("that is a campaign")
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
    fn a_demo_over_a_broker_is_told_the_rest_too() {
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
                panic!("{line} is a demo over a broker")
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
