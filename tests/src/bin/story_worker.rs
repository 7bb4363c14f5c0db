//! A worker of the hard stories; their tests start it, and kill it.

use anyhow::Result;
use clap::Parser;
use idem_tests::stories::work::{self, Post, Role};

/// One worker process of the hard stories.
#[derive(Parser)]
struct Arguments {
    /// What it does
    #[arg(value_enum)]
    role: Role,
    #[command(flatten)]
    post: Post,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let Arguments { role, post } = Arguments::parse();
    work::run(role, post).await
}
