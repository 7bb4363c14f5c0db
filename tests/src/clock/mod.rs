//! Wall clocks that are wrong, for single processes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use anyhow::Result;
use tempfile::TempDir;

const FILE: &str = "wrong-by";

/// The wall clock of the processes that are started with its [environment](Self::environment). It
/// can jump while they run. Monotonic clocks are right: a real jump does not touch them.
///
/// The processes read it through a library of their own (`wrong_clock.c`), because PostgreSQL reads
/// the clock in signal handlers. libfaketime allocates memory there, which destroys the heap.
#[derive(Debug)]
pub struct Clock {
    directory: TempDir,
    file: File,
}

impl Clock {
    /// A clock that is wrong by so many seconds. The processes must start before it is dropped.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn wrong_by(seconds: i64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("idem-clock-").tempdir()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let file = File::create(directory.path().join(FILE))?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let clock = Self { directory, file };
        clock.set(seconds)?;
        Ok(clock)
    }

    /// Lets the clock jump to where it is wrong by so many seconds.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // The processes have mapped the file, so it is written in place, in one call.
        Ok(self.file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }

    /// The environment of a process that has this clock.
    #[must_use]
    pub fn environment(&self) -> [(String, String); 2] {
        [
            (
                "LD_PRELOAD".to_owned(),
                env!("WRONG_CLOCK_LIBRARY").to_owned(),
            ),
            (
                "WRONG_CLOCK_FILE".to_owned(),
                self.directory.path().join(FILE).display().to_string(),
            ),
        ]
    }
}
