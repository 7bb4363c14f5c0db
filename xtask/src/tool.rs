//! Programs that cargo installs in the target directory.

use std::path::PathBuf;

use anyhow::Result;

use crate::context::Context;
use crate::step;

/// Installs a version of a program, and returns the path of the program.
pub fn install(context: &Context, name: &str, version: &str) -> Result<PathBuf> {
    let root = context.target().join("tools");
    let mut install = context.cargo(["install", name, "--locked", "--version", version]);
    install.arg("--root").arg(&root);
    step::run(
        &format!("installing {name}"),
        install,
        &format!("run `cargo install {name}` to see all errors"),
    )?;
    Ok(root.join("bin").join(name))
}
