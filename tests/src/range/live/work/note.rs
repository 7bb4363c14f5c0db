//! What outlives a killed process: a number of its own, and one byte for each delivery.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A number that is on disk before anybody goes on.
pub struct Note(PathBuf);

impl Note {
    /// The note in this file.
    pub fn new(dir: &Path, name: &str) -> Self {
        Self(dir.join(name))
    }

    /// What was written last; 0 in the beginning.
    pub fn read(&self) -> Result<usize> {
        match fs::read_to_string(&self.0) {
            Ok(text) => text
                .parse()
                .with_context(|| format!("{} is no note", self.0.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes it whole, or leaves what was there.
    pub fn write(&self, number: usize) -> Result<()> {
        let draft = self.0.with_extension("new");
        fs::write(&draft, number.to_string())?;
        Ok(fs::rename(draft, &self.0)?)
    }
}

/// Counts events over all processes that use the same file.
pub struct Counter(File);

impl Counter {
    /// The counter in this file.
    pub fn open(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::options().create(true).append(true).open(&path);
        Ok(Self(file.with_context(|| path.display().to_string())?))
    }

    /// One more.
    pub fn add(&mut self) -> Result<(), std::io::Error> {
        self.0.write_all(b".")
    }

    /// How many there were.
    pub fn read(dir: &Path, name: &str) -> Result<u64> {
        match fs::metadata(dir.join(name)) {
            Ok(file) => Ok(file.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
