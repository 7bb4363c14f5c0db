//! Builds the library of the previous version from the history of the repository, for the test of
//! an upgrade that begins with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::Variant;
use crate::context::Context;
use crate::{setup, step};

/// The last commit of the previous version.
const COMMIT: &str = "c4b39921d3b73dedc71f012b3bf795f4ba4b65e7";

/// Returns the path of the library. Cargo skips the parts that are up to date.
pub fn library(context: &Context) -> Result<PathBuf> {
    let _alone = context.alone()?;
    let cargo_pgrx = setup::do_what_is_missing(context, Variant::Shipped)?;
    let home = context.target().join("previous");
    let sources = home.join(COMMIT);
    if !sources.exists() {
        extract(context, &home, &sources)?;
    }
    let package_dir = home.join("package").join(context.pg.to_string());
    let mut package: Command = context.sh.cmd(cargo_pgrx).into();
    package
        .current_dir(&sources)
        .env("CARGO_TARGET_DIR", home.join("target"))
        .args(["pgrx", "package", "--package", "idem"])
        .args(["--no-default-features", "--features"])
        .arg(context.feature())
        .arg("--pg-config")
        .arg(context.pg_config())
        .arg("--out-dir")
        .arg(&package_dir);
    step::run(
        "building the library of the previous version",
        package,
        "check that `cargo xtask build` succeeds on this machine",
    )?;
    let library = format!("usr/lib/postgresql/{}/lib/idem.so", context.pg);
    let library = package_dir.join(library);
    ensure!(library.is_file(), "{} was not built", library.display());
    Ok(library)
}

/// Writes the files of the commit into a folder.
fn extract(context: &Context, home: &Path, sources: &Path) -> Result<()> {
    let draft = home.join("draft");
    let archive = home.join("sources.tar");
    let sh = &context.sh;
    sh.remove_path(&draft)?;
    sh.create_dir(&draft)?;
    sh.cmd("git")
        .args(["archive", "--format=tar", "--output"])
        .arg(&archive)
        .arg(COMMIT)
        .run()
        .context(
            "the history of the repository is needed: fetch it with `git fetch --unshallow`",
        )?;
    sh.cmd("tar")
        .arg("--extract")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(&draft)
        .run()?;
    sh.remove_path(&archive)?;
    std::fs::rename(&draft, sources)?;
    Ok(())
}
