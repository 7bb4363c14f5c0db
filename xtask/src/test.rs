//! Every test there is, from the quick to the thorough.

use std::fs;

use anyhow::Result;

use crate::context::Context;
use crate::{build, snapshot, step};

/// What is quick.
const PLAIN: [&str; 8] = [
    "--package",
    "idem-core",
    "--package",
    "idem-client",
    "--package",
    "idem-cluster",
    "--package",
    "xtask",
];

/// The biggest test binary runs last and alone, so that its summary ends the output.
const LAST: &str = "server";

pub fn test(context: &Context, filter: Option<&str>) -> Result<()> {
    build::build(context)?;
    snapshot::check(context)?;

    let mut plain = context.cargo(["test"]);
    plain.args(PLAIN).args(filter);
    step::show(plain)?;

    let mut others = context.cargo(["test", "--package", "idem-tests", "--lib", "--bins"]);
    for name in other_binaries(context)? {
        others.args(["--test", &name]);
    }
    others.args(filter);
    step::show(others)?;

    let mut last = context.cargo(["test", "--package", "idem-tests", "--test", LAST]);
    last.args(filter);
    step::show(last)
}

/// The test binaries of idem-tests but the last: files, and folders with a `main.rs`, as cargo finds them.
fn other_binaries(context: &Context) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(context.root.join("tests/tests"))? {
        let path = entry?.path();
        let is_binary = path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str())
            && is_binary
            && name != LAST
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
