//! The benchmarks as a program: `cargo xtask bench`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use idem_bench::{self as bench, Options};

/// Compares idem with hand-written alternatives, on one server with the durability settings that
/// are usual in production.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<ExitCode> {
    let Arguments { options } = Arguments::parse();
    let met = bench::run(&options)?;
    // A figure below its target is a result, and not a failure of the program.
    println!(
        "{}",
        if met {
            "Every target is met."
        } else {
            "Some figures are below their targets."
        }
    );
    Ok(ExitCode::SUCCESS)
}
