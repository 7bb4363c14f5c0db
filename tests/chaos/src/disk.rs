//! The disk of a server: a tmpfs for each server, which can be filled and freed.
//!
//! The mounts are in a mount namespace of this process and its children. The kernel removes the
//! mounts when the last of these processes ends, also after a SIGKILL.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// The mount options of a disk, with its size.
const SIZE: &str = "size=1500m,mode=755";

/// Moves this process into a new mount namespace. Threads that were started before stay in the old
/// namespace.
///
/// # Errors
/// When this process does not run as root.
pub fn unshare_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)
        .context("cannot create a mount namespace; run the campaign as root")?;
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

/// A mounted disk, which is unmounted when this value is dropped.
pub struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Creates this directory and mounts an empty disk there.
    pub fn mount(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let nothing: Option<&str> = None;
        mount(nothing, &dir, Some("tmpfs"), MsFlags::empty(), Some(SIZE))
            .with_context(|| format!("cannot mount a disk at {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// Returns the directory of the mount.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Allocates all free space.
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

    /// Frees the space that [`fill`](Self::fill) has allocated.
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
        // Detach the mount, because a server may still use the disk: the mount then disappears when
        // that server ends.
        if let Err(error) = umount2(&self.dir, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.dir.display());
        }
    }
}
