//! Opens psql in a throwaway cluster.

use anyhow::Result;
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::context::Context;
use crate::{build, server};

pub fn psql(context: &Context, database: &str) -> Result<()> {
    let install = build::build(context)?;
    let cluster = server::start(&install, "psql", database, &[])?;
    // Ctrl-C in psql cancels a query. It must not end this process, because the server ends with
    // this process. SAFETY: the signal is ignored, so no handler function is installed.
    unsafe { signal(Signal::SIGINT, SigHandler::SigIgn)? };
    // The exit status of psql is ignored.
    cluster
        .command("psql")?
        .args(["--dbname", database])
        .status()?;
    Ok(())
}
