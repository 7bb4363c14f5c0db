//! The extension, built as it is shipped and laid over the private copy of PostgreSQL.

use std::process::Command;

use anyhow::Result;
use idem_cluster::Install;

use crate::context::Context;
use crate::{setup, step};

/// Makes the package (release profile) and installs it in `target/pg`. Cargo knows when there is nothing to do.
pub fn build(context: &Context) -> Result<Install> {
    let _alone = context.alone()?;
    let cargo_pgrx = setup::do_what_is_missing(context)?;
    // Scripts of an earlier version must not be shipped.
    context.sh.remove_path(context.package_dir())?;
    let mut package: Command = context.sh.cmd(cargo_pgrx).into();
    package
        .args([
            "pgrx",
            "package",
            "--package",
            "idem",
            "--no-default-features",
            "--features",
            &context.feature(),
        ])
        .arg("--pg-config")
        .arg(context.pg_config())
        .arg("--out-dir")
        .arg(context.package_dir());
    step::run(
        "building the extension",
        package,
        "`cargo build -p idem` shows the errors of the compiler in full",
    )?;

    let install = Install::open(&context.install_root(), context.pg)?;
    install.overlay(&context.package_dir())?;
    Ok(install)
}
