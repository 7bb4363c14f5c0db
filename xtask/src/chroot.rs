//! PostgreSQL versions that this Debian does not have.

use anyhow::{Result, bail};

use crate::context::Context;

pub fn is_needed(context: &Context) -> bool {
    context.pg != 15 && !context.pg_config().exists()
}

pub fn run(_: &Context) -> Result<()> {
    bail!("not here yet")
}
