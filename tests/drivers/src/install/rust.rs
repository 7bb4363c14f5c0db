//! The ORMs of Rust.

use std::env;
use std::process::Command;

use anyhow::Result;
use idem_cluster::workspace_root;

use super::target;

/// Returns the command that executes cargo in the workspace `tests/rust-orms`. It compiles into
/// `target/drivers`.
///
/// # Errors
/// Fails when the folder cannot be created.
pub fn rust_orms() -> Result<Command> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace_root().join("tests/rust-orms"));
    cargo.env("CARGO_TARGET_DIR", target("rust-orms")?);
    cargo.env("CARGO_INCREMENTAL", "0");
    Ok(cargo)
}
