//! The shooting range on a cluster of its own, or over a broker of its own.

use anyhow::Result;

use crate::context::Context;
use crate::{build, server, step};

pub fn demo(context: &Context, broker: Option<&str>, arguments: &[String]) -> Result<()> {
    let install = build::build(context)?;
    match broker {
        None => {
            // Built before the server starts: a failed build should not cost a start.
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
        // It starts its servers by itself, for it has to crash them.
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
        "`cargo build -p idem-tests` shows the errors of the compiler in full",
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
