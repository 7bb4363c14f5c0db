//! Builds the extension as it is shipped or with pause points, and installs it in a private copy of
//! PostgreSQL.

use std::path::PathBuf;

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
    setup::do_what_is_missing(context, variant)?;
    let mut build = context.cargo(["build", "--package", "idem", "--release"]);
    // The library is copied from there, whatever the configuration of cargo says.
    build
        .env_remove("CARGO_BUILD_TARGET")
        .arg("--target-dir")
        .arg(context.target())
        .args(["--no-default-features", "--features"])
        .arg(context.feature() + variant.feature());
    let label = match variant {
        Variant::Shipped => "building the extension",
        Variant::PausePoints => "building the extension with pause points",
    };
    step::run(
        label,
        build,
        "run `cargo build -p idem` to see all errors of the compiler",
    )?;
    let package = stage(context, variant)?;
    let install = Install::open(&context.install_root(variant), context.pg)?;
    install.overlay(&package)?;
    Ok(install)
}

/// Puts the files of the extension into a tree that can be copied to `/`, and returns its root.
fn stage(context: &Context, variant: Variant) -> Result<PathBuf> {
    let (pg, tree) = (context.pg, context.package_dir(variant));
    // The old tree is removed first, because scripts of an earlier version must not be shipped.
    context.sh.remove_path(&tree)?;
    let library = tree.join(format!("usr/lib/postgresql/{pg}/lib"));
    context.sh.create_dir(&library)?;
    let built = context.target().join("release/libidem.so");
    context.sh.copy_file(built, library.join("idem.so"))?;
    let scripts = tree.join(format!("usr/share/postgresql/{pg}/extension"));
    install_script::write(&context.root, &scripts)?;
    Ok(tree)
}
