//! The directories of a server, and how they disappear.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Sockets live here because their path may have 107 bytes at most, and because every user can
/// reach it.
const SOCKET_PARENT: &str = "/tmp";

/// Holds the path of the socket directory; locked as long as the owner lives.
const LOCK_FILE: &str = "owner.lock";

/// One directory for data and log, and one for the socket. Both go when this is dropped.
pub struct Home {
    dir: TempDir,
    socket_dir: TempDir,
    /// The lock goes with the process, however it ends; that is how the next one knows what is left
    /// behind.
    _lock: File,
}

impl Home {
    /// Makes new directories for a server called `name`.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn create(name: &str) -> Result<Self> {
        let parent = crate::workspace_root().join("target/clusters");
        fs::create_dir_all(&parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        remove_orphans(&parent)?;

        let dir = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir_in(&parent)?;
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

    /// Where data and log are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A directory with a path short enough for sockets, for their owner alone.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.socket_dir.path()
    }

    /// The file that the server's output goes to.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// Opens the log to append to it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_log(&self) -> Result<File> {
        let file = self.log_file();
        let opened = File::options().create(true).append(true).open(&file);
        opened.with_context(|| format!("cannot open {}", file.display()))
    }

    /// Everything that has been logged so far, over all starts.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log_file())?).into_owned())
    }

    /// The last lines of the log: why a server did not start.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self
            .log()
            .unwrap_or_else(|error| format!("(no log: {error})"));
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Leaves data and log for whoever wants to know what happened; they stay until somebody
    /// removes `target/clusters`.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
        // Without its lock file it is nobody's orphan. A failure here only means that it may be
        // cleaned away.
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
