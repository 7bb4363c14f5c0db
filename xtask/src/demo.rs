//! Runs the demo on its own cluster, or over its own broker.

use std::process::Command;

use anyhow::Result;

use crate::context::Context;
use crate::{build, server, step};

/// The durability that is usual in production, because the demo measures what protection costs.
const SETTINGS: [(&str, &str); 1] = [("fsync", "on")];

/// A profile of cargo.
#[derive(Clone, Copy)]
enum Profile {
    Dev,
    /// Optimized, because the demo measures its client together with the server.
    Demo,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Demo => "demo",
        }
    }
}

pub fn demo(context: &Context, broker: Option<&str>, arguments: &[String]) -> Result<()> {
    let install = build::build(context)?;
    match broker {
        None => {
            // Build before the server starts, so that a failed build does not start a server in
            // vain.
            compile(context, Profile::Demo, &["shooting-range"])?;
            let cluster = server::start(&install, "demo", "idem", &SETTINGS)?;
            let url = cluster.connection_string("idem");
            let mut range = program(context, Profile::Demo, "shooting-range");
            range.args(["--database-url", &url]).args(arguments);
            step::show(range)
        }
        // The program starts its servers itself, because it crashes them.
        Some(broker) => {
            compile(context, Profile::Dev, &["live-range", "range-worker"])?;
            let mut range = program(context, Profile::Dev, "live-range");
            range.args(["--broker", broker]).args(arguments);
            step::show(range)
        }
    }
}

fn compile(context: &Context, profile: Profile, programs: &[&str]) -> Result<()> {
    let profile = profile.name();
    let mut build = context.cargo(["build", "--profile", profile, "--package", "idem-demo"]);
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
fn program(context: &Context, profile: Profile, name: &str) -> Command {
    context.cargo([
        "run",
        "--quiet",
        "--profile",
        profile.name(),
        "--package",
        "idem-demo",
        "--bin",
        name,
        "--",
    ])
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
        let command = program(&context, Profile::Demo, "shooting-range");
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
