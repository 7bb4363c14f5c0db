//! Creates and removes the directories of a server.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The parent of the socket directories. It has a short path, because the path of a socket has at
/// most 107 bytes, and every user can reach it.
const SOCKET_PARENT: &str = "/tmp";

/// The file with the path of the socket directory. It is locked as long as the owner lives.
const LOCK_FILE: &str = "owner.lock";

/// A directory for data and log, and a directory for the socket. Both directories are removed when
/// this value is dropped.
pub struct Home {
    dir: TempDir,
    socket_dir: TempDir,
    /// The lock is released with the process, however the process ends. The next process can
    /// therefore recognize directories of owners that have ended.
    _lock: File,
}

impl Home {
    /// Makes new directories for a server with the name `name`.
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

        // The file is locked before it gets its name, so that no process takes the directory for an
        // orphan.
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

    /// Returns the directory of data and log.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the directory for the socket. Its path is short enough for sockets, and only its
    /// owner can enter it.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.socket_dir.path()
    }

    /// Returns the file that receives the output of the server.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// Opens the log for appending.
    pub fn open_log(&self) -> Result<File> {
        let file = self.log_file();
        let opened = File::options().create(true).append(true).open(&file);
        opened.with_context(|| format!("cannot open {}", file.display()))
    }

    /// Returns everything that has been logged so far, over all starts.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log_file())?).into_owned())
    }

    /// Returns the last lines of the log, which show why a server did not start.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self
            .log()
            .unwrap_or_else(|error| format!("(no log: {error})"));
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Keeps data and log for an analysis. They stay until `target/clusters` is removed.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
        // Without its lock file the directory is not an orphan. A failure here only means that the
        // directory may be removed as an orphan.
        let _ = fs::remove_file(self.dir().join(LOCK_FILE));
    }
}

/// Removes the directories of owners that were killed.
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
        // Two owners that start at the same time may both remove this directory. A directory that
        // is already removed is no error.
        if let Ok(socket_dir) = fs::read_to_string(dir.join(LOCK_FILE))
            && Path::new(&socket_dir).parent() == Some(Path::new(SOCKET_PARENT))
        {
            let _ = fs::remove_dir_all(socket_dir);
        }
        let _ = fs::remove_dir_all(&dir);
    }
    Ok(())
}
