//! PostgreSQL versions that this Debian does not have: the same command runs again in a chroot of a Debian that has them.
//!
//! A chroot is a fresh machine on which nothing but a Rust toolchain is lent; the set-up does the rest in there. The workspace
//! is at the same path inside, with a `target` of its own: what one C library has linked, another may not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;
use xshell::cmd;

use crate::context::{Context, cargo_home};
use crate::step;

/// Set inside, where the way ends.
const INSIDE: &str = "IDEM_XTASK_IN_CHROOT";

/// What a Rust toolchain needs at least; the set-up installs the rest.
const INCLUDE: &str = "--include=ca-certificates,gcc,libc6-dev";

/// Runs in a mount namespace of its own, so that nothing stays mounted when it ends. `$1` is the chroot, `$2` the target
/// directory it uses, then come directories that appear in it where they are here, a colon, and the command.
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

/// The Debian that has this version.
fn suite(pg: u16) -> Result<&'static str> {
    match pg {
        15 => Ok("bookworm"),
        17 => Ok("trixie"),
        18 => Ok("sid"),
        _ => bail!("no Debian has PostgreSQL {pg}: choose 15, 17 or 18"),
    }
}

pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Whether the version is neither here nor can be installed here.
pub fn is_needed(context: &Context) -> Result<bool> {
    let suite = suite(context.pg)?;
    let codename = release_codename().unwrap_or_default();
    // What is no Debian is told by the set-up what to do.
    Ok(!codename.is_empty() && codename != suite && !is_inside() && !context.pg_config().exists())
}

/// Runs this same command inside.
pub fn run(context: &Context) -> Result<()> {
    let suite = suite(context.pg)?;
    ensure!(
        geteuid().is_root(),
        "PostgreSQL {} is in Debian {suite}, and a chroot of that needs root: run this command as root",
        context.pg
    );
    let root = bootstrap(context, suite)?;
    lend_network(context, &root)?;

    let target = context.target().join("chroot").join(format!("{suite}.target"));
    fs::create_dir_all(&target)?;
    let sh = &context.sh;
    let toolchain = PathBuf::from(cmd!(sh, "rustc --print sysroot").quiet().read()?);
    ensure!(
        toolchain.join("bin/cargo").is_file() && toolchain != Path::new("/usr"),
        "the Rust toolchain in {} cannot be lent to a chroot: use one from rustup",
        toolchain.display()
    );
    let cargo_home = cargo_home()?;
    let path = format!(
        "{}/bin:{}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        toolchain.display(),
        cargo_home.display()
    );
    let workspace = &context.root;

    eprintln!(
        "PostgreSQL {} is in Debian {suite}: going on in {}",
        context.pg,
        root.display()
    );
    let enter = cmd!(sh, "unshare --mount --propagation private sh -c {ENTER} enter")
        .args([&root, &target, workspace, &toolchain, &cargo_home])
        .args([":", "env", "--chdir"])
        .arg(workspace)
        // What cargo has set for us speaks of this side.
        .args(["--unset=CARGO", "--unset=RUSTC", "--unset=RUSTUP_HOME", "--unset=PGRX_HOME"])
        .args([
            format!("PATH={path}"),
            format!("CARGO_HOME={}", cargo_home.display()),
            format!("{INSIDE}={suite}"),
        ])
        .args(["HOME=/root", "cargo", "xtask"])
        .args(std::env::args_os().skip(1));
    let status = Command::from(enter).status()?;
    ensure!(status.success(), "failed in the chroot of Debian {suite} ({status})");
    Ok(())
}

/// Makes the chroot, if it is not there: a Debian with next to nothing in it.
fn bootstrap(context: &Context, suite: &str) -> Result<PathBuf> {
    let parent = context.target().join("chroot");
    let root = parent.join(suite);
    if root.exists() {
        return Ok(root);
    }
    let sh = &context.sh;
    if cmd!(sh, "debootstrap --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_err()
    {
        eprintln!("debootstrap is missing and will be installed: it makes the chroot");
        let advice = "install debootstrap by hand, as root";
        step::run("apt-get update", cmd!(sh, "apt-get update").into(), advice)?;
        step::run(
            "apt-get install",
            cmd!(sh, "apt-get install -y --no-install-recommends debootstrap").into(),
            advice,
        )?;
    }
    let mirror = mirror(context)?;
    // It gets its name when it is whole.
    let draft = parent.join(format!("{suite}.new"));
    sh.remove_path(&draft)?;
    sh.create_dir(&parent)?;
    step::run(
        &format!("debootstrap {suite}"),
        cmd!(sh, "debootstrap --variant=minbase {INCLUDE} {suite} {draft} {mirror}").into(),
        "see that this machine reaches its package mirror, and that there is space under target",
    )?;
    fs::rename(draft, &root)?;
    Ok(root)
}

/// What this machine needs to reach its mirror (names, authorities, proxies), the chroot needs as well.
fn lend_network(context: &Context, root: &Path) -> Result<()> {
    let sh = &context.sh;
    for file in ["etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"] {
        let ours = Path::new("/").join(file);
        if ours.exists() {
            sh.copy_file(ours, root.join(file))?;
        }
    }
    let mut acquire = String::new();
    for line in cmd!(sh, "apt-config dump Acquire").quiet().read()?.lines() {
        // What is fetched is the chroot's own affair, only how is ours.
        if !line.starts_with("Acquire::IndexTargets") {
            acquire.extend([line, "\n"]);
        }
    }
    sh.write_file(root.join("etc/apt/apt.conf.d/90idem-lent"), acquire)?;
    Ok(())
}

/// Where this machine gets its own Debian from.
fn mirror(context: &Context) -> Result<String> {
    let sh = &context.sh;
    let release = format!("Release: {}", release_codename().unwrap_or_default());
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
        .context("apt's sources name no mirror of this Debian: see /etc/apt/sources.list")
}

fn release_codename() -> Option<String> {
    let release = fs::read_to_string("/etc/os-release").ok()?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(str::to_owned)
}
