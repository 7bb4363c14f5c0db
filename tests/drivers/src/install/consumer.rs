//! Programs that the tests take from the documentation.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::native::{gcc, go_build, jars, java_with, javac};
use super::{alone, node, once, python, target};

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

/// Returns the command that executes this code with the drivers of Go.
///
/// # Errors
/// Fails when the code cannot be compiled.
pub fn go_consumer(code: &str) -> Result<Command> {
    let file = written("consumer.go", code)?;
    Ok(Command::new(compiled(&file, go_build)?))
}

/// Returns the command that executes this code with the drivers of C.
///
/// # Errors
/// Fails when the code cannot be compiled.
pub fn c_consumer(code: &str) -> Result<Command> {
    let file = written("consumer.c", code)?;
    let libraries = ["-lpq", "-lrabbitmq"];
    let program = compiled(&file, |file, program| gcc(file, program, &libraries))?;
    Ok(Command::new(program))
}

/// Returns the command that executes this code with the drivers of Java.
///
/// # Errors
/// Fails when the code cannot be compiled.
pub fn java_consumer(code: &str) -> Result<Command> {
    let file = written("Consumer.java", code)?;
    // The client of RabbitMQ writes its log with slf4j.
    let jars = jars(&["amqp-client", "slf4j-api", "slf4j-nop"]);
    let classes = compiled(&file, |file, classes| {
        javac(&[file.to_owned()], &jars, classes)
    })?;
    let mut command = java_with(&jars, &classes);
    command.arg("Consumer");
    Ok(command)
}

/// Returns the command that executes this code with the drivers of PHP.
///
/// # Errors
/// Fails when the code cannot be written.
pub fn php_consumer(code: &str) -> Result<Command> {
    let mut command = Command::new("php");
    command.args(["-d", "display_errors=stderr"]);
    command.arg(written("consumer.php", code)?);
    Ok(command)
}

/// Returns the command that executes this code with the drivers of Ruby.
#[must_use]
pub fn ruby_consumer(code: &str) -> Command {
    let mut command = Command::new("ruby");
    command.args(["-e", code]);
    command
}

/// Returns the command that executes this code with the drivers of Perl.
#[must_use]
pub fn perl_consumer(code: &str) -> Command {
    let mut command = Command::new("perl");
    command.args(["-e", code]);
    command
}

/// Writes code to a file with this name, in a folder for this code only: a test executes several
/// variants of a program.
fn written(name: &str, code: &str) -> Result<PathBuf> {
    let _alone = alone()?;
    let mut hasher = DefaultHasher::new();
    (name, code).hash(&mut hasher);
    let file = target(&format!("consumers/{:016x}", hasher.finish()))?.join(name);
    fs::write(&file, code)?;
    Ok(file)
}

/// Compiles a file unless this is done already, and returns the path of the program.
fn compiled(file: &Path, compile: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = file.parent().context("the file has no folder")?;
    let program = folder.join("main");
    once(folder, &fs::read(file)?, || compile(file, &program))?;
    Ok(program)
}
