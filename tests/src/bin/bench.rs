//! The benchmarks as a program: `cargo xtask bench`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use idem_tests::bench::{self, Options};

/// idem against what people write by hand, on one server with the durability that people run with.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<ExitCode> {
    let Arguments { options } = Arguments::parse();
    let met = bench::run(&options)?;
    // A figure that falls short is a result, not a failure of the program.
    println!(
        "{}",
        if met {
            "Every target is met."
        } else {
            "Some figures fall short of their target."
        }
    );
    Ok(ExitCode::SUCCESS)
}
