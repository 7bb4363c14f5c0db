//! The test programs: the unit tests of each crate, and each test binary.
//!
//! One run of cargo builds all of them. The packages that a run selects decide the features of
//! their dependencies, and cargo builds a dependency again for each set of features. So each run
//! selects all packages, also when it builds only one test binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::context::Context;

/// The arguments that select the packages: all but the extension, which is tested through a server.
pub const PACKAGES: [&str; 4] = ["--workspace", "--exclude", "idem", "--all-features"];

/// The arguments that select the unit tests.
const UNITS: [&str; 2] = ["--lib", "--bins"];

/// A part of a package that has tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub package: String,
    pub name: String,
    /// A test binary, and not the unit tests of a library or of a program.
    pub is_binary: bool,
}

/// A built test program.
pub struct Program {
    pub target: Target,
    executable: PathBuf,
    /// The directory of the package.
    directory: PathBuf,
}

impl Program {
    /// Returns a command that runs the program as cargo does.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("CARGO_PKG_NAME", &self.target.package)
            .stdin(Stdio::null());
        command
    }
}

/// Returns the targets with tests of all packages but the extension, in the order of their names.
pub fn targets(context: &Context) -> Result<Vec<Target>> {
    let metadata = context
        .cargo(["metadata", "--no-deps", "--format-version=1"])
        .output()?;
    ensure!(metadata.status.success(), "`cargo metadata` failed");
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let mut targets = Vec::new();
    for package in items(&metadata["packages"]) {
        let package_name = text(&package["name"])?;
        for target in items(&package["targets"]) {
            if package_name != "idem" && target["test"] == Value::Bool(true) {
                targets.push(Target {
                    package: package_name.to_owned(),
                    name: text(&target["name"])?.to_owned(),
                    is_binary: is_binary(target),
                });
            }
        }
    }
    targets.sort();
    Ok(targets)
}

/// Builds these targets, and returns their programs in the order of the targets.
pub fn build(context: &Context, targets: &[Target]) -> Result<Vec<Program>> {
    let mut build = context.cargo([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    build.args(PACKAGES);
    if targets.iter().any(|target| !target.is_binary) {
        build.args(UNITS);
    }
    for target in targets.iter().filter(|target| target.is_binary) {
        build.args(["--test", &target.name]);
    }
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the build of the tests failed");
    let mut programs = Vec::new();
    for line in str::from_utf8(&output.stdout)?.lines() {
        let program = read(&serde_json::from_str(line)?)?;
        programs.extend(program.filter(|program| targets.contains(&program.target)));
    }
    programs.sort_by(|one, other| one.target.cmp(&other.target));
    let built: Vec<_> = programs.iter().map(|program| &program.target).collect();
    for target in targets {
        ensure!(built.contains(&target), "cargo has not built {target:?}");
    }
    Ok(programs)
}

/// Reads one message of cargo. Returns `None` unless it describes a test program.
fn read(message: &Value) -> Result<Option<Program>> {
    let Some(executable) = message["executable"].as_str() else {
        return Ok(None);
    };
    if message["profile"]["test"] != Value::Bool(true) {
        return Ok(None);
    }
    let manifest = Path::new(text(&message["manifest_path"])?);
    let directory = manifest.parent().context("a manifest has no directory")?;
    Ok(Some(Program {
        target: Target {
            package: package_of(text(&message["package_id"])?)?,
            name: text(&message["target"]["name"])?.to_owned(),
            is_binary: is_binary(&message["target"]),
        },
        executable: executable.into(),
        directory: directory.to_owned(),
    }))
}

/// Returns the name in the id of a package: `path+file:///…/client#idem-client@0.4.0`, or
/// `path+file:///…/xtask#0.4.0` if the directory has the name of the package.
fn package_of(id: &str) -> Result<String> {
    let (path, fragment) = id.rsplit_once('#').context("a package has no version")?;
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or_default(),
    };
    Ok(name.to_owned())
}

fn is_binary(target: &Value) -> bool {
    target["kind"][0] == "test"
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .context("cargo describes a target without a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_is_named_by_its_id_or_its_directory() {
        let named = package_of("path+file:///idem/client#idem-client@0.4.0").unwrap();
        assert_eq!(named, "idem-client");
        assert_eq!(
            package_of("path+file:///idem/xtask#0.4.0").unwrap(),
            "xtask"
        );
        assert!(package_of("idem-client").is_err());
    }
}
