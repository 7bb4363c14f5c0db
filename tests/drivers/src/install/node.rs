//! The drivers of Node.js.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use idem_cluster::workspace_root;

use super::{alone, copy, once, python, remove_missing, run, source, target};

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

/// Returns the command that executes Node.js in a copy of the package `idem-pg`, with everything
/// that its tests need.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn node_package() -> Result<Command> {
    package("node-package", &[""])
}

/// Returns the command that executes Node.js in another copy of the package, with Prisma and
/// TypeORM, which are large.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn node_package_orms() -> Result<Command> {
    package("node-package-orms", &["", "tests/orms"])
}

/// Returns the command that executes Node.js in another copy of the package, with the packages of
/// its recipes.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn node_package_recipes() -> Result<Command> {
    package("node-package-recipes", &["", "recipes"])
}

/// Returns the command that executes Node.js in another copy of the package, with older versions of
/// Node.js.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn node_package_versions() -> Result<Command> {
    package("node-package-versions", &["", "tests/versions"])
}

/// Returns the command that executes Node.js in a copy of the package. `locks` are the folders of
/// the lock files to install.
fn package(folder: &str, locks: &[&str]) -> Result<Command> {
    let environment = python::environment()?;
    let folder = target(folder)?;
    {
        let _alone = alone()?;
        let package = workspace_root().join("packages/node");
        copy(&package, &folder)?;
        for sources in ["recipes", "scripts", "src", "tests"] {
            remove_missing(&package.join(sources), &folder.join(sources))?;
        }
        let files = locks
            .iter()
            .map(|lock| fs::read(package.join(lock).join("package-lock.json")));
        let packages = files.collect::<Result<Vec<_>, _>>()?.concat();
        once(&folder, &packages, || {
            locks
                .iter()
                .try_for_each(|lock| ci(&folder.join(lock), &environment, &[]))
        })?;
    }
    let mut command = Command::new(environment.join("bin/node"));
    command.current_dir(folder);
    // The scripts of the package start npm.
    let mut path = vec![environment.join("bin")];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    command.env("PATH", env::join_paths(path)?);
    command.env("npm_config_cache", target("cache/npm")?);
    Ok(command)
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
