//! Runs the demo on its own cluster, or over its own broker.

use std::process::Command;

use anyhow::Result;

use crate::context::Context;
use crate::{build, server, setup, step};

/// The durability that is usual in production, because the demo measures what protection costs.
const SETTINGS: [(&str, &str); 1] = [("fsync", "on")];

/// How the programs are built.
#[derive(Clone, Copy)]
enum Build {
    /// Over real brokers.
    Live,
    /// Without the clients of brokers, and optimized, because the demo measures its client together
    /// with the server.
    Measured,
}

impl Build {
    fn arguments(self) -> [&'static str; 2] {
        match self {
            Self::Live => ["--features", "brokers"],
            Self::Measured => ["--profile", "demo"],
        }
    }
}

pub fn demo(context: &Context, broker: Option<&str>, arguments: &[String]) -> Result<()> {
    let install = build::build(context)?;
    match broker {
        None => {
            // Build before the server starts, so that a failed build does not start a server in
            // vain.
            compile(context, Build::Measured, &["shooting-range"])?;
            let cluster = server::start(&install, "demo", "idem", &SETTINGS)?;
            let url = cluster.connection_string("idem");
            let mut range = program(context, Build::Measured, "shooting-range");
            range.args(["--database-url", &url]).args(arguments);
            step::show(range)
        }
        // The program starts its servers itself, because it crashes them.
        Some(broker) => {
            setup::setup(context)?;
            compile(context, Build::Live, &["live-range", "range-worker"])?;
            let mut range = program(context, Build::Live, "live-range");
            range.args(["--broker", broker]).args(arguments);
            step::show(range)
        }
    }
}

fn compile(context: &Context, how: Build, programs: &[&str]) -> Result<()> {
    let mut build = context.cargo(["build", "--package", "idem-demo"]);
    build.args(how.arguments());
    for program in programs {
        build.args(["--bin", program]);
    }
    step::run(
        "building the demo",
        build,
        "run `cargo build -p idem-demo` to see all errors of the compiler",
    )
}

/// Returns the command that runs a program of the demo. Arguments of the program can be added.
fn program(context: &Context, how: Build, name: &str) -> Command {
    let mut run = context.cargo(["run", "--quiet", "--package", "idem-demo"]);
    run.args(how.arguments()).args(["--bin", name, "--"]);
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    /// The measured program is also started with the optimized profile, so that cargo does not
    /// start an unoptimized build of it.
    #[test]
    fn measured_program_runs_with_the_optimized_profile() {
        let context = Context::new(Suite::Bookworm).unwrap();
        let command = program(&context, Build::Measured, "shooting-range");
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        assert!(
            arguments
                .windows(2)
                .any(|pair| pair == ["--profile", "demo"]),
            "{arguments:?}"
        );
        let manifest = std::fs::read_to_string(context.root.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[profile.demo]\ninherits = \"release\""));
    }
}
