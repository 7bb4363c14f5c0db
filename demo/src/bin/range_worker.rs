//! One process of the range over a broker. `live-range` starts these processes.

use anyhow::Result;
use idem_demo::range::live::work::program;

#[tokio::main]
async fn main() -> Result<()> {
    program::main().await
}
