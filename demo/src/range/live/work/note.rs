//! Counters in files, which survive the kill of a process. They have one byte for each event.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::{Context, Result};

/// A counter of events of all processes that use the same file.
pub struct Counter(File);

impl Counter {
    /// Opens the counter in this file, and creates the file if it does not exist.
    pub fn open(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::options().create(true).append(true).open(&path);
        Ok(Self(file.with_context(|| path.display().to_string())?))
    }

    /// Adds events with one system call. A kill leaves either the old or the new number.
    pub fn add(&mut self, events: usize) -> Result<(), std::io::Error> {
        self.0.write_all(&vec![b'.'; events])
    }

    /// Returns the number of events, or 0 when the file does not exist.
    pub fn read(dir: &Path, name: &str) -> Result<u64> {
        match fs::metadata(dir.join(name)) {
            Ok(file) => Ok(file.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
