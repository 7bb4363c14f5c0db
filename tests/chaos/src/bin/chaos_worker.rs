//! One process of a campaign, which `chaos` starts. The code of the process is that of the live
//! range in the demo.

use anyhow::Result;
use idem_demo::range::live::work::program;

#[tokio::main]
async fn main() -> Result<()> {
    program::main().await
}
