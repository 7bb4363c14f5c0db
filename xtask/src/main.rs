//! What a person types: set-up, demo, test, bench, psql, package.
//!
//! Every command first does what is missing before it, so that a fresh clone needs one command and a second run starts in
//! seconds. Everything that is made is under `target`.

mod bench;
mod build;
mod chroot;
mod context;
mod demo;
mod package;
mod psql;
mod server;
mod setup;
mod snapshot;
mod soak;
mod step;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::context::Context;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Everything there is to do with idem", version)]
struct Arguments {
    /// The major version of PostgreSQL; what this Debian does not have runs in a chroot of one that does (needs root)
    #[arg(long, global = true, default_value_t = 15)]
    pg: u16,
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
        /// Over a real broker, rabbitmq or nats, with processes that are killed; nobody plays without idem then
        #[arg(long)]
        broker: Option<String>,
        /// Passed on; `cargo xtask demo -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The tests that CI runs
    Test {
        /// Only tests whose name contains this; `everything` runs all tests in all settings
        filter: Option<String>,
    },
    /// Run tests again and again, without retries, and keep a ledger by commit in target/soak
    Soak {
        /// Only tests whose name contains this
        #[arg(default_value = "")]
        name: String,
        /// How many runs in a row must pass; runs of this commit that passed before count
        #[arg(long, default_value_t = 20)]
        runs: u32,
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
    let context = Context::new(arguments.pg)?;
    if chroot::is_needed(&context)? {
        return chroot::run(&context);
    }
    match arguments.command {
        Command::Setup => setup::setup(&context),
        Command::Build => build::build(&context).map(drop),
        Command::Demo { broker, arguments } => demo::demo(&context, broker.as_deref(), &arguments),
        Command::Test { filter } => test::test(&context, filter.as_deref()),
        Command::Soak { name, runs } => soak::soak(&context, &name, runs),
        Command::Bench { arguments } => bench::bench(&context, &arguments),
        Command::Psql { database } => psql::psql(&context, &database),
        Command::Package => package::package(&context),
        Command::Snapshot => snapshot::write(&context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_demo_is_for_the_demo_but_the_version_is_ours() {
        for line in [
            "xtask --pg 17 demo --players 3",
            "xtask demo --pg 17 --players 3",
            "xtask demo --pg 17 -- --players 3",
        ] {
            let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
            let Command::Demo {
                arguments: passed_on,
                broker: None,
            } = arguments.command
            else {
                panic!("{line} is a demo")
            };
            assert_eq!((arguments.pg, passed_on.join(" ").as_str()), (17, "--players 3"), "{line}");
        }
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
            let rest = if line.ends_with('3') { "--messages 3" } else { "" };
            assert_eq!((broker.as_str(), passed_on.join(" ").as_str()), ("nats", rest), "{line}");
        }
    }
}
