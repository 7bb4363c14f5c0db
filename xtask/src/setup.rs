//! Prepares a Debian machine with a Rust toolchain to build and run the extension. Parts that are
//! installed already are not changed, and the check for them takes little time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use idem_cluster::Install;
use xshell::cmd;

use crate::build::Variant;
use crate::context::{Context, cargo_home};
use crate::{chroot, debian, step};

/// The version of cargo-pgrx. It must be the version that the extension's Cargo.toml pins.
const CARGO_PGRX: &str = "0.18.1";

pub fn setup(context: &Context) -> Result<()> {
    let _alone = context.alone()?;
    do_what_is_missing(context, Variant::Shipped).map(drop)
}

/// Does the set-up for a caller that holds the lock of [`Context::alone`]. Returns the cargo-pgrx
/// to build with.
pub fn do_what_is_missing(context: &Context, variant: Variant) -> Result<PathBuf> {
    debian::install(context, &debian::packages(context.pg))
        .with_context(|| format!("the set-up needs Debian packages and cargo-pgrx {CARGO_PGRX}"))?;
    let cargo_pgrx = install_cargo_pgrx(context)?;
    init_pgrx(context, &cargo_pgrx)?;
    Install::copy_from_system(&context.install_root(variant), context.pg)?;
    Ok(cargo_pgrx)
}

/// Finds or installs cargo-pgrx in the only version that fits the extension.
fn install_cargo_pgrx(context: &Context) -> Result<PathBuf> {
    let tools = context.target().join("tools");
    // The directory into which cargo installs programs is also searched, because it may be missing
    // in the search path.
    let common = [
        PathBuf::from("cargo-pgrx"),
        cargo_home()?.join("bin/cargo-pgrx"),
    ];
    let find = || {
        let mut candidates = std::iter::once(tools.join("bin/cargo-pgrx")).chain(common.clone());
        candidates.find(|candidate| version_of(context, candidate).as_deref() == Some(CARGO_PGRX))
    };
    if let Some(found) = find() {
        return Ok(found);
    }

    let version = format!("={CARGO_PGRX}");
    let mut install = context.cargo(["install", "--locked", "cargo-pgrx", "--version", &version]);
    if let Some(reason) = why_apart(context, &common) {
        eprintln!(
            "cargo-pgrx {CARGO_PGRX}, which builds the extension, will be installed in {}: \
             {reason}",
            tools.display()
        );
        install.arg("--root").arg(&tools);
    } else {
        eprintln!(
            "cargo-pgrx {CARGO_PGRX}, which builds the extension, is missing and will be \
             installed"
        );
    }
    step::run(
        "cargo install cargo-pgrx (some minutes)",
        install,
        "if a download failed, try again; if a library is missing, check that the Debian packages \
         of the set-up are installed completely",
    )?;
    find().with_context(|| {
        format!(
            "cargo-pgrx {CARGO_PGRX} has been installed, but it does not run, or another version \
             runs: check your PATH"
        )
    })
}

/// Returns the reason why cargo-pgrx must not be installed in cargo's own directory, if there is
/// one.
fn why_apart(context: &Context, common: &[PathBuf]) -> Option<String> {
    if chroot::is_inside() {
        return Some("a program of this chroot would not run outside of it".to_owned());
    }
    let other = common
        .iter()
        .find_map(|candidate| version_of(context, candidate))?;
    Some(format!(
        "version {other} is installed, and other projects may need it"
    ))
}

fn version_of(context: &Context, cargo_pgrx: &Path) -> Option<String> {
    let sh = &context.sh;
    let printed = cmd!(sh, "{cargo_pgrx} pgrx --version")
        .quiet()
        .ignore_stderr()
        .read()
        .ok()?;
    printed.strip_prefix("cargo-pgrx ").map(str::to_owned)
}

/// Configures the PostgreSQL from which pgrx makes its bindings.
fn init_pgrx(context: &Context, cargo_pgrx: &Path) -> Result<()> {
    let pg_config = context.pg_config();
    let config = context.target().join("pgrx/config.toml");
    let line = format!("{} = \"{}\"", context.feature(), pg_config.display());
    let known = fs::read_to_string(&config).unwrap_or_default();
    if known.lines().any(|known| known == line) {
        return Ok(());
    }
    let feature = context.feature();
    let mut init: Command = context.sh.cmd(cargo_pgrx).into();
    init.args(["pgrx", "init"])
        .arg(format!("--{feature}={}", pg_config.display()));
    step::run(
        "cargo pgrx init",
        init,
        "check that postgresql-server-dev is installed completely, because its pg_config is used",
    )
}
