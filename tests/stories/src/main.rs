//! One worker process of the hard stories. The tests start and kill these processes.

use anyhow::Result;
use clap::Parser;
use idem_stories::work::{self, Post, Role};

/// Runs one worker process of the hard stories.
#[derive(Parser)]
struct Arguments {
    /// The role of the worker
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
