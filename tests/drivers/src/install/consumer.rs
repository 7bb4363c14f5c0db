//! Programs that the tests take from the documentation.

use std::process::Command;

use anyhow::Result;

use super::{node, python, target};

/// Returns the command that executes this code with the drivers of Python.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn python_consumer(code: &str) -> Result<Command> {
    let mut command = Command::new(python("psycopg")?.get_program());
    command.args(["-c", code]);
    Ok(command)
}

/// Returns the command that executes this code with the drivers of Node.js. It runs in their
/// folder, because Node.js searches packages there.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn node_consumer(code: &str) -> Result<Command> {
    let mut command = Command::new(node("pg")?.get_program());
    command.args(["--input-type=module", "--eval", code]);
    command.current_dir(target("node")?);
    Ok(command)
}
