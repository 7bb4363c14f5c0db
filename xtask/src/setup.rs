//! Prepares a Debian machine with a Rust toolchain to build and run the extension. Parts that are
//! installed already are not changed, and the check for them takes little time.

use std::fs;

use anyhow::{Context as _, Result};
use idem_cluster::Install;

use crate::build::Variant;
use crate::context::Context;
use crate::debian;

/// Does the set-up for everything, also for the tests.
pub fn setup(context: &Context) -> Result<()> {
    let _alone = context.alone()?;
    do_what_is_missing(context, Variant::Shipped)?;
    debian::install(context, &debian::for_tests(context.pg))
        .context("the tests need Debian packages")
}

/// Does the set-up for a build of the extension and the demo. The caller holds the lock of
/// [`Context::alone`].
pub fn do_what_is_missing(context: &Context, variant: Variant) -> Result<()> {
    debian::install(context, &debian::for_build(context.pg))
        .context("the extension needs Debian packages")?;
    name_pg_config(context)?;
    Install::copy_from_system(&context.install_root(variant), context.pg)?;
    Ok(())
}

/// Writes the configuration of pgrx: the PostgreSQL whose headers its bindings are made from. It is
/// what `cargo pgrx init` would write.
fn name_pg_config(context: &Context) -> Result<()> {
    let file = context.target().join("pgrx/config.toml");
    let (feature, pg_config) = (context.feature(), context.pg_config());
    let text = format!("[configs]\n{feature} = \"{}\"\n", pg_config.display());
    // The time of an unchanged file stays, because cargo compares it.
    if fs::read_to_string(&file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    context.sh.write_file(file, text)?;
    Ok(())
}
