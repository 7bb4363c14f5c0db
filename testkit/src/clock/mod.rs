//! A wrong wall clock for the processes that a test starts.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use anyhow::Result;
use tempfile::TempDir;

const FILE: &str = "wrong-by";

/// The wall clock of the processes that are started with its [environment](Self::environment). The
/// clock can jump while the processes run. Their monotonic clocks stay correct, as with a real jump
/// of the wall clock.
///
/// The processes read the clock through a preloaded library (`wrong_clock.c`). libfaketime is not
/// used: PostgreSQL reads the clock in signal handlers, and libfaketime allocates memory there,
/// which corrupts the heap.
#[derive(Debug)]
pub struct Clock {
    directory: TempDir,
    file: File,
}

impl Clock {
    /// Creates a clock that is wrong by this number of seconds. The processes must start before the
    /// clock is dropped.
    pub fn wrong_by(seconds: i64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("idem-clock-").tempdir()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let file = File::create(directory.path().join(FILE))?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let clock = Self { directory, file };
        clock.set(seconds)?;
        Ok(clock)
    }

    /// Makes the clock jump. Afterwards it is wrong by this number of seconds.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // The processes have mapped the file, so it is written in place, with one system call.
        Ok(self.file.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }

    /// Returns the environment variables of a process that uses this clock.
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
