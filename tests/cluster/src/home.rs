//! The directories of a cluster, and how they disappear.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Sockets live here because their path may have 107 bytes at most, and because every user can reach it.
const SOCKET_PARENT: &str = "/tmp";

/// Holds the path of the socket directory; locked as long as the owner lives.
const LOCK_FILE: &str = "owner.lock";

/// One directory for data and log, and one for the socket. Both go when this is dropped.
pub(crate) struct Home {
    dir: TempDir,
    socket_dir: TempDir,
    /// The lock goes with the process, however it ends; that is how the next one knows what is left behind.
    _lock: File,
}

impl Home {
    /// Makes new directories for a cluster called `name`.
    pub(crate) fn create(name: &str) -> Result<Self> {
        let parent = crate::workspace_root().join("target/clusters");
        fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
        remove_orphans(&parent)?;

        let dir = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(&parent)?;
        let socket_dir = tempfile::Builder::new()
            .prefix("idem-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(SOCKET_PARENT)?;

        // Locked before it gets its name, so that nobody takes it for an orphan.
        let draft = dir.path().join("owner.new");
        let mut lock = File::create(&draft)?;
        lock.lock()?;
        write!(lock, "{}", socket_dir.path().display())?;
        fs::rename(draft, dir.path().join(LOCK_FILE))?;
        Ok(Self {
            dir,
            socket_dir,
            _lock: lock,
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn socket_dir(&self) -> &Path {
        self.socket_dir.path()
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// Leaves data and log for whoever wants to know what happened; they stay until somebody removes `target/clusters`.
    pub(crate) fn keep(&mut self) {
        self.dir.disable_cleanup(true);
        // Without its lock file it is nobody's orphan. A failure here only means that it may be cleaned away.
        let _ = fs::remove_file(self.dir().join(LOCK_FILE));
    }
}

/// Removes what owners left behind that were killed.
fn remove_orphans(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent)? {
        let dir = entry?.path();
        let Ok(lock) = File::open(dir.join(LOCK_FILE)) else {
            continue;
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // Two owners that start at once may both be here: what is gone already is fine.
        if let Ok(socket_dir) = fs::read_to_string(dir.join(LOCK_FILE))
            && Path::new(&socket_dir).parent() == Some(Path::new(SOCKET_PARENT))
        {
            let _ = fs::remove_dir_all(socket_dir);
        }
        let _ = fs::remove_dir_all(&dir);
    }
    Ok(())
}
