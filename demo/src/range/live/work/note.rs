//! State in files that survives the kill of a process: a number, and counters with one byte for
//! each event.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A number in a file. A process writes it before it continues.
pub struct Note(PathBuf);

impl Note {
    /// Creates the note for this file.
    pub fn new(dir: &Path, name: &str) -> Self {
        Self(dir.join(name))
    }

    /// Returns the number that was written last, or 0 when the file does not exist.
    pub fn read(&self) -> Result<usize> {
        match fs::read_to_string(&self.0) {
            Ok(text) => text
                .parse()
                .with_context(|| format!("{} does not contain a number", self.0.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the number atomically. A kill leaves either the new or the old number.
    pub fn write(&self, number: usize) -> Result<()> {
        let draft = self.0.with_extension("new");
        fs::write(&draft, number.to_string())?;
        Ok(fs::rename(draft, &self.0)?)
    }
}

/// A counter of events of all processes that use the same file.
pub struct Counter(File);

impl Counter {
    /// Opens the counter in this file, and creates the file if it does not exist.
    pub fn open(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::options().create(true).append(true).open(&path);
        Ok(Self(file.with_context(|| path.display().to_string())?))
    }

    /// Adds one event.
    pub fn add(&mut self) -> Result<(), std::io::Error> {
        self.0.write_all(b".")
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
