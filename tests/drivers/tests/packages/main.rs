//! The packages for other languages: their own tests, their types and their format, and the first
//! minutes of a new user.

mod node;
mod python;

use std::process::Command;

use anyhow::{Result, ensure};

/// Runs a command. Fails with its output if it fails.
fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
