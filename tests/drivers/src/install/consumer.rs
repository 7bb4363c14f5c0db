//! Programs that the tests take from the documentation.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{node, python, target};

/// Returns the command that executes this code with the drivers of Python.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn python_consumer(code: &str) -> Result<Command> {
    let installed = python("psycopg")?;
    execute(&installed, target("python")?.join("consumer.py"), code)
}

/// Returns the command that executes this code with the drivers of Node.js. The file is beside
/// them, because Node.js searches packages in the folders above a file.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn node_consumer(code: &str) -> Result<Command> {
    let installed = node("pg")?;
    execute(&installed, target("node")?.join("consumer.mjs"), code)
}

fn execute(installed: &Command, file: PathBuf, code: &str) -> Result<Command> {
    fs::write(&file, code)?;
    let mut command = Command::new(installed.get_program());
    command.arg(file);
    Ok(command)
}
