//! Builds the extension as it is shipped or with pause points, and installs it in a private copy of
//! PostgreSQL.

use std::process::Command;

use anyhow::Result;
use idem_cluster::Install;

use crate::context::Context;
use crate::{install_script, setup, step};

/// A variant of the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The extension as users get it.
    Shipped,
    /// The extension with the feature `pause-points`, for the tests of races.
    PausePoints,
}

impl Variant {
    /// Returns the suffix in the names of the directories of this variant.
    pub fn suffix(self) -> &'static str {
        match self {
            Variant::Shipped => "",
            Variant::PausePoints => "-pause-points",
        }
    }

    fn feature(self) -> &'static str {
        match self {
            Variant::Shipped => "",
            Variant::PausePoints => ",pause-points",
        }
    }
}

/// Builds the package (release profile) and installs it in `target/pg`. Cargo skips the parts that
/// are up to date.
pub fn build(context: &Context) -> Result<Install> {
    build_variant(context, Variant::Shipped)
}

/// Builds and installs one of the variants. Each variant has its own copy of PostgreSQL.
pub fn build_variant(context: &Context, variant: Variant) -> Result<Install> {
    let _alone = context.alone()?;
    let cargo_pgrx = setup::do_what_is_missing(context, variant)?;
    let package_dir = context.package_dir(variant);
    // The old package is removed first, because scripts of an earlier version must not be shipped.
    context.sh.remove_path(&package_dir)?;
    let mut package: Command = context.sh.cmd(cargo_pgrx).into();
    package
        .args([
            "pgrx",
            "package",
            "--package",
            "idem",
            "--no-default-features",
            "--features",
        ])
        .arg(context.feature() + variant.feature())
        .arg("--pg-config")
        .arg(context.pg_config())
        .arg("--out-dir")
        .arg(&package_dir);
    let label = match variant {
        Variant::Shipped => "building the extension",
        Variant::PausePoints => "building the extension with pause points",
    };
    step::run(
        label,
        package,
        "run `cargo build -p idem` to see all errors of the compiler",
    )?;
    install_script::make_stable(context, variant)?;

    let install = Install::open(&context.install_root(variant), context.pg)?;
    install.overlay(&package_dir)?;
    Ok(install)
}
