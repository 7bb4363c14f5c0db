//! The script that CREATE EXTENSION runs is generated, and a copy of it is committed: a change of what users get is seen in
//! review, and upgrades are written against it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use xshell::cmd;

use crate::build;
use crate::context::Context;

/// Writes the committed copy.
pub fn write(context: &Context) -> Result<()> {
    build::build(context)?;
    let committed = committed(context);
    fs::create_dir_all(committed.parent().context("the snapshot has a directory")?)?;
    fs::copy(generated(context), &committed)?;
    eprintln!("written: {}", committed.display());
    Ok(())
}

/// Fails, with the difference, when the committed copy is not what the build has generated.
pub fn check(context: &Context) -> Result<()> {
    let (committed, generated) = (committed(context), generated(context));
    let sh = &context.sh;
    let diff = cmd!(sh, "diff --unified --new-file {committed} {generated}")
        .quiet()
        .ignore_status()
        .output()?;
    if !diff.status.success() {
        let diff = String::from_utf8_lossy(&diff.stdout);
        bail!(
            "the install script is not the one in {}; if that is meant, run `cargo xtask snapshot` and commit it\n{diff}",
            committed.display()
        );
    }
    Ok(())
}

fn file_name() -> String {
    // The workspace has one version.
    format!("idem--{}.sql", env!("CARGO_PKG_VERSION"))
}

fn committed(context: &Context) -> PathBuf {
    context.root.join("sql/install").join(file_name())
}

fn generated(context: &Context) -> PathBuf {
    context
        .package_dir()
        .join(format!("usr/share/postgresql/{}/extension", context.pg))
        .join(file_name())
}
