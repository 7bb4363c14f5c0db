//! One process of a campaign: a process of the range over a broker. `chaos` starts these processes.

use anyhow::Result;
use idem_demo::range::live::work::program;

#[tokio::main]
async fn main() -> Result<()> {
    program::main().await
}
