//! Installs the drivers under `target/drivers`, in the versions that the lock files define.

use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use idem_cluster::workspace_root;

mod consumer;
mod native;
mod node;
mod python;
mod rust;

pub use consumer::{
    c_consumer, go_consumer, java_consumer, node_consumer, perl_consumer, php_consumer,
    python_consumer, ruby_consumer,
};
pub use native::{c, go, java, perl, php, ruby};
pub use node::{
    node, node_orm, node_package, node_package_orms, node_package_recipes, node_package_versions,
};
pub use python::{
    new_environment, python, python_orm, python_package, python_package_driver, python_recipes,
};
pub use rust::rust_orms;

/// Returns a lock that one installation at a time holds. It is also a lock between processes.
fn alone() -> Result<File> {
    let lock = File::create(target("")?.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Installs unless `packages` are installed already. The file `installed` is written after
/// everything is installed, so that an installation that failed half way is repeated.
fn once(folder: &Path, packages: &[u8], install: impl FnOnce() -> Result<()>) -> Result<()> {
    let installed = folder.join("installed");
    if fs::read(&installed).is_ok_and(|found| found == packages) {
        return Ok(());
    }
    if installed.exists() {
        fs::remove_file(&installed)?;
    }
    install()?;
    fs::create_dir_all(folder)?;
    fs::write(&installed, packages)?;
    Ok(())
}

/// Runs a command. The caches of pip, npm, Go and Prisma stay under `target`.
fn run(command: &mut Command) -> Result<()> {
    let what = format!("{command:?}");
    let cache = target("cache")?;
    let status = command
        .env("PIP_CACHE_DIR", cache.join("pip"))
        .env("npm_config_cache", cache.join("npm"))
        .env("NODE_DISABLE_COMPILE_CACHE", "1")
        .env("GOCACHE", cache.join("go"))
        .env("XDG_CONFIG_HOME", &cache)
        .env("XDG_CACHE_HOME", &cache)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {what}"))?;
    ensure!(status.success(), "{what} failed: {status}");
    Ok(())
}

fn source(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(language)
}

fn target(language: &str) -> Result<PathBuf> {
    let folder = workspace_root().join("target/drivers").join(language);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The folders that the tools of Node.js write. They are not copied.
const WRITTEN: [&str; 4] = ["node_modules", "build", "dist", "generated"];

fn is_written(entry: &DirEntry) -> bool {
    WRITTEN.iter().any(|name| entry.file_name() == *name)
}

/// Removes the files of a copy that its source does not have.
fn remove_missing(source: &Path, copy: &Path) -> Result<()> {
    for entry in fs::read_dir(copy)? {
        let entry = entry?;
        let (from, to) = (source.join(entry.file_name()), entry.path());
        let is_folder = entry.file_type()?.is_dir();
        match (from.exists(), is_folder) {
            _ if is_written(&entry) => {}
            (true, true) => remove_missing(&from, &to)?,
            (true, false) => {}
            (false, true) => fs::remove_dir_all(to)?,
            (false, false) => fs::remove_file(to)?,
        }
    }
    Ok(())
}

/// Copies the files of a folder that have changed, and those of its folders. A file is replaced at
/// once, because a program can be reading it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if is_written(&entry) {
            continue;
        }
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_file() {
            let new = fs::read(entry.path())?;
            if fs::read(&target).is_ok_and(|old| old == new) {
                continue;
            }
            let written = target.with_extension("new");
            fs::write(&written, new)?;
            fs::rename(written, target)?;
        } else {
            bail!("{} is neither a file nor a folder", entry.path().display());
        }
    }
    Ok(())
}
