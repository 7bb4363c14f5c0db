//! Runs the shooting range on its own cluster, or over its own broker.

use anyhow::Result;

use crate::context::Context;
use crate::{build, server, step};

pub fn demo(context: &Context, broker: Option<&str>, arguments: &[String]) -> Result<()> {
    let install = build::build(context)?;
    match broker {
        None => {
            // The build comes before the server starts, so that a failed build does not cost a
            // start.
            compile(context, &["shooting-range"])?;
            let cluster = server::start(&install, "demo", "idem")?;
            let url = cluster.connection_string("idem");
            play(
                context,
                "shooting-range",
                &["--database-url", &url],
                arguments,
            )
        }
        // The program starts its servers itself, because it crashes them.
        Some(broker) => {
            compile(context, &["live-range", "range-worker"])?;
            play(context, "live-range", &["--broker", broker], arguments)
        }
    }
}

fn compile(context: &Context, programs: &[&str]) -> Result<()> {
    let mut build = context.cargo(["build", "--package", "idem-tests"]);
    for program in programs {
        build.args(["--bin", program]);
    }
    step::run(
        "building the demo",
        build,
        "run `cargo build -p idem-tests` to see all errors of the compiler",
    )
}

fn play(context: &Context, program: &str, first: &[&str], rest: &[String]) -> Result<()> {
    let mut demo = context.cargo([
        "run",
        "--quiet",
        "--package",
        "idem-tests",
        "--bin",
        program,
        "--",
    ]);
    demo.args(first).args(rest);
    step::show(demo)
}
