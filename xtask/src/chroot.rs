//! Runs the same command again in a chroot, for a Debian suite that is not the suite of this
//! machine.
//!
//! A chroot is like a new machine that uses the Rust toolchain of this machine. The set-up installs
//! the rest in it. The workspace is at the same path inside, with its own `target`: a program that
//! was linked with one C library may not run with another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use idem_cluster::workspace_root;
use nix::unistd::geteuid;
use xshell::{Shell, cmd};

use crate::context::cargo_home;
use crate::step;
use crate::suite::{Suite, codename, is_debian_like};

/// The variable that is set inside a chroot. A command with this variable enters no other chroot.
const INSIDE: &str = "IDEM_XTASK_IN_CHROOT";

/// The packages that a Rust toolchain needs at least. The set-up installs the rest.
const INCLUDE: &str = "--include=ca-certificates,gcc,libc6-dev";

/// The script that enters the chroot. It runs in its own mount namespace, so that nothing stays
/// mounted when it ends. `$1` is the chroot, and `$2` is the target directory of the chroot. The
/// next arguments are directories that appear in the chroot at the same path, a colon, and the
/// command.
const ENTER: &str = r#"
set -eu
root=$1 target=$2
shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
workspace=$1
while [ "$1" != : ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
mount --bind "$target" "$root$workspace/target"
exec chroot "$root" "$@"
"#;

pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Returns whether the suite is not the suite of this machine.
pub fn is_needed(suite: Suite) -> bool {
    // On a machine without apt, the set-up reports which machine it needs.
    !is_inside() && is_debian_like() && Suite::of_this_machine() != Some(suite)
}

/// Fails unless this user may enter a chroot.
pub fn ensure_root(suite: Suite) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "Debian {suite} is not the suite of this machine, and its chroot needs root: \
         run this command as root"
    );
    Ok(())
}

/// Runs this command inside the chroot.
pub fn run(suite: Suite) -> Result<()> {
    ensure_root(suite)?;
    let sh = &Shell::new()?;
    let workspace = workspace_root();
    let parent = workspace.join("target/chroot");
    let root = bootstrap(sh, &parent, suite)?;
    copy_network_settings(sh, &root)?;

    let target = parent.join(format!("{suite}.target"));
    fs::create_dir_all(&target)?;
    let toolchain = PathBuf::from(cmd!(sh, "rustc --print sysroot").quiet().read()?);
    ensure!(
        toolchain.join("bin/cargo").is_file() && toolchain != Path::new("/usr"),
        "the Rust toolchain in {} cannot be used in a chroot: install one with rustup",
        toolchain.display()
    );
    let cargo_home = cargo_home()?;
    let path = format!(
        "{}/bin:{}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        toolchain.display(),
        cargo_home.display()
    );

    eprintln!("Debian {suite}: continuing in {}", root.display());
    let enter = cmd!(
        sh,
        "unshare --mount --propagation private sh -c {ENTER} enter"
    )
    .args([&root, &target, &workspace, &toolchain, &cargo_home])
    .args([":", "env", "--chdir"])
    .arg(&workspace)
    // These variables are removed, because cargo has set them to paths outside the chroot.
    .args([
        "--unset=CARGO",
        "--unset=RUSTC",
        "--unset=RUSTUP_HOME",
        "--unset=PGRX_HOME",
    ])
    .args([
        format!("PATH={path}"),
        format!("CARGO_HOME={}", cargo_home.display()),
        format!("{INSIDE}={suite}"),
    ])
    .args(["HOME=/root", "cargo", "xtask"])
    .args(std::env::args_os().skip(1));
    let status = Command::from(enter).status()?;
    ensure!(
        status.success(),
        "the command failed in the chroot of Debian {suite} ({status})"
    );
    Ok(())
}

/// Creates the chroot, a minimal Debian, if it does not exist.
fn bootstrap(sh: &Shell, parent: &Path, suite: Suite) -> Result<PathBuf> {
    let suite = suite.to_string();
    let root = parent.join(&suite);
    if root.exists() {
        return Ok(root);
    }
    if cmd!(sh, "debootstrap --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_err()
    {
        eprintln!("debootstrap, which creates the chroot, is missing and will be installed");
        let advice = "install debootstrap by hand, as root";
        step::run("apt-get update", cmd!(sh, "apt-get update").into(), advice)?;
        step::run(
            "apt-get install",
            cmd!(sh, "apt-get install -y --no-install-recommends debootstrap").into(),
            advice,
        )?;
    }
    let mirror = mirror(sh)?;
    // The directory gets its final name when it is complete, so an interrupted installation is not
    // used.
    let draft = parent.join(format!("{suite}.new"));
    sh.remove_path(&draft)?;
    sh.create_dir(parent)?;
    step::run(
        &format!("debootstrap {suite}"),
        cmd!(
            sh,
            "debootstrap --variant=minbase {INCLUDE} {suite} {draft} {mirror}"
        )
        .into(),
        "check that this machine reaches its package mirror, and that there is space under target",
    )?;
    fs::rename(draft, &root)?;
    Ok(root)
}

/// Copies the settings with which this machine reaches its mirror: names, certificate authorities
/// and proxies.
fn copy_network_settings(sh: &Shell, root: &Path) -> Result<()> {
    for file in [
        "etc/resolv.conf",
        "etc/hosts",
        "etc/ssl/certs/ca-certificates.crt",
    ] {
        let source = Path::new("/").join(file);
        if source.exists() {
            sh.copy_file(source, root.join(file))?;
        }
    }
    let mut acquire = String::new();
    for line in cmd!(sh, "apt-config dump Acquire").quiet().read()?.lines() {
        // The chroot decides which indexes to download. Only the settings for the way of
        // downloading are copied.
        if !line.starts_with("Acquire::IndexTargets") {
            acquire.extend([line, "\n"]);
        }
    }
    sh.write_file(root.join("etc/apt/apt.conf.d/90idem-lent"), acquire)?;
    Ok(())
}

/// Returns the mirror from which this machine installs its own Debian packages.
fn mirror(sh: &Shell) -> Result<String> {
    let release = format!("Release: {}", codename().unwrap_or_default());
    let format = "$(REPO_URI)";
    let found = cmd!(
        sh,
        "apt-get indextargets --format {format} {release} 'Component: main' 'Created-By: Packages'"
    )
    .quiet()
    .read()?;
    let mirror = found.lines().find(|uri| uri.starts_with("http"));
    mirror
        .map(str::to_owned)
        .context("the sources of apt contain no mirror of this Debian: check /etc/apt/sources.list")
}
