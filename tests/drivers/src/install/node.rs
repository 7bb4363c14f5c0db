//! The drivers of Node.js.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{alone, copy, once, python, run, source, target};

/// Returns the command that executes a driver of Node.js.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn node(driver: &str) -> Result<Command> {
    program("node", driver, |folder, environment| {
        ci(folder, environment, &["--omit=dev"])
    })
}

/// Returns the command that executes an ORM of Node.js. The ORMs are the packages for development,
/// which [`node`] does not install because they are large.
///
/// # Errors
/// Fails when the ORMs cannot be installed.
pub fn node_orm(orm: &str) -> Result<Command> {
    program("node-orms", orm, |folder, environment| {
        ci(folder, environment, &["--include=dev"])?;
        let mut prisma = Command::new(environment.join("bin/node"));
        prisma.args(["node_modules/prisma/build/index.js", "generate"]);
        prisma.arg("--schema=schema.prisma");
        // Prisma would download an engine, which it does not use to generate.
        prisma.env("PRISMA_SCHEMA_ENGINE_BINARY", environment.join("bin/node"));
        run(prisma.env("CHECKPOINT_DISABLE", "1").current_dir(folder))
    })
}

/// Returns the command for a driver in a folder of `target/drivers`. `install` gets this folder and
/// the virtual environment of Python.
fn program(
    folder: &str,
    driver: &str,
    install: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<Command> {
    // Node.js and npm are installed by Python.
    let environment = python::environment()?;
    let folder = target(folder)?;
    {
        let _alone = alone()?;
        copy(&source("node"), &folder)?;
        let files = ["package.json", "package-lock.json", "schema.prisma"];
        let files = files.map(|file| fs::read(source("node").join(file)));
        let packages = files.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        once(&folder, &packages, || install(&folder, &environment))?;
    }
    let mut command = Command::new(environment.join("bin/node"));
    command.arg(folder.join("main.js")).arg(driver);
    Ok(command)
}

/// Installs the packages of the lock file.
fn ci(folder: &Path, environment: &Path, options: &[&str]) -> Result<()> {
    let mut npm = Command::new(environment.join("bin/npm"));
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--loglevel=error"]);
    run(npm.args(options).current_dir(folder))
}
