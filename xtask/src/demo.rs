//! The shooting range on a cluster of its own.

use anyhow::Result;

use crate::context::Context;
use crate::{build, server, step};

pub fn demo(context: &Context, arguments: &[String]) -> Result<()> {
    let install = build::build(context)?;
    // Built before the server starts: a failed build should not cost a start.
    let build = context.cargo(["build", "--package", "idem-tests", "--bin", "shooting-range"]);
    step::run(
        "building the demo",
        build,
        "`cargo build -p idem-tests` shows the errors of the compiler in full",
    )?;
    let cluster = server::start(&install, "demo", "idem")?;
    let mut demo = context.cargo(["run", "--quiet", "--package", "idem-tests", "--bin", "shooting-range", "--"]);
    demo.arg("--database-url")
        .arg(cluster.connection_string("idem"))
        .args(arguments);
    step::show(demo)
}
