//! Writes the install script of a release to `sql/install`.

use anyhow::Result;

use crate::context::Context;
use crate::install_script::{self, Committed, VERSION};

/// Writes the script that the build makes. From then on the script of this version cannot change.
pub fn write(context: &Context) -> Result<()> {
    let committed = Committed::open(&context.root)?;
    let path = committed.release(VERSION, &install_script::generate(&context.root)?)?;
    eprintln!("wrote {}: version {VERSION} is released", path.display());
    Ok(())
}
