//! The wall clock of the two servers, which can jump.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::stories::clock_that_jumps;

/// The clock that both servers read, through libfaketime. Monotonic clocks go on: a real jump does
/// not touch them.
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// A clock that is right. Its file is in `dir`, which the servers can read.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(dir: &Path) -> Result<Self> {
        let clock = Self { file: dir.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Lets the clock jump to where it is wrong by so many seconds. The file is replaced in one
    /// step, because the servers read it all the time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}\n"))?;
        fs::set_permissions(&next, Permissions::from_mode(0o644))?;
        Ok(fs::rename(&next, &self.file)?)
    }

    /// The environment of a server that reads this clock.
    ///
    /// # Errors
    /// When libfaketime is not installed.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        clock_that_jumps(&self.file)
    }
}
