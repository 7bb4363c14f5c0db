//! Writes the install script of this version to `sql/install`, and marks it as released.

use anyhow::Result;

use crate::build;
use crate::context::Context;
use crate::install_script::{self, Committed, VERSION};

/// Writes the script that the build makes. With `release` the script cannot change any more.
pub fn write(context: &Context, release: bool) -> Result<()> {
    build::build(context)?;
    let committed = Committed::open(&context.root)?;
    let path = committed.write(VERSION, &install_script::generated(context)?)?;
    eprintln!("wrote {}", path.display());
    if release {
        committed.release(VERSION)?;
        eprintln!("version {VERSION} is released: its script must not change any more");
    }
    Ok(())
}
