//! Runs the benchmarks, which start their own clusters. The measured programs are built with the
//! release profile.

use anyhow::Result;

use crate::context::Context;
use crate::{build, setup, step};

pub fn bench(context: &Context, arguments: &[String]) -> Result<()> {
    setup::setup(context)?;
    build::build(context)?;
    let mut bench = context.cargo([
        "run",
        "--release",
        "--package",
        "idem-bench",
        "--features",
        "brokers",
        "--bin",
        "bench",
        "--",
    ]);
    bench.args(arguments);
    step::show(bench)
}
