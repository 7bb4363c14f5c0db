//! A disk of its own for each server: a tmpfs, which can be filled and freed.
//!
//! The mounts are in a mount namespace of this process and its children. The kernel removes them
//! with the last of these, also after a SIGKILL.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// How large a disk is.
const SIZE: &str = "size=1500m,mode=755";

/// Gives this process a mount namespace of its own. Threads that were started before do not have
/// it.
///
/// # Errors
/// When this process may not: it has to run as root.
pub fn unshare_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a campaign mounts its own disks: run it as root")?;
    let nothing: Option<&str> = None;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )
    .context("cannot make the mounts private")
}

/// A mounted disk, gone with this.
pub struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Mounts an empty disk at this directory, which is created.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let nothing: Option<&str> = None;
        mount(nothing, &dir, Some("tmpfs"), MsFlags::empty(), Some(SIZE))
            .with_context(|| format!("cannot mount a disk at {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes all the space that is free.
    ///
    /// # Errors
    /// When the space cannot be taken.
    pub fn fill(&self) -> Result<()> {
        let balloon = File::create(self.balloon())?;
        let mut chunk = 64 << 20;
        let mut size = 0;
        while chunk >= 4096 {
            match fallocate(balloon.as_fd(), FallocateFlags::empty(), size, chunk) {
                Ok(()) => size += chunk,
                Err(Errno::ENOSPC) => chunk /= 2,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives the space back.
    ///
    /// # Errors
    /// When it cannot be given back.
    pub fn free(&self) -> Result<()> {
        match fs::remove_file(self.balloon()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn balloon(&self) -> PathBuf {
        self.dir.join("balloon")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A server that has not ended yet still uses it; then it goes with that.
        if let Err(error) = umount2(&self.dir, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.dir.display());
        }
    }
}
