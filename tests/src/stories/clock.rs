//! Clocks that are wrong.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The environment of a process whose wall clock is wrong by so many seconds; time passes for it as for everybody.
///
/// # Errors
/// When Debian's package libfaketime is not installed: `cargo xtask setup` does that.
pub fn clock_wrong_by(seconds: i64) -> Result<Vec<(String, String)>> {
    let library = library().context("there is no libfaketime: cargo xtask setup installs it")?;
    Ok(vec![
        ("LD_PRELOAD".to_owned(), library.display().to_string()),
        ("FAKETIME".to_owned(), format!("{seconds:+}")),
        // Clocks that only count cannot be wrong.
        ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
    ])
}

/// The environment of a process whose wall clock jumps while it runs: `file` holds by how much it is wrong, as `+3600`. The
/// file must be replaced in one step. Monotonic clocks are not faked, as a real jump does not touch them.
///
/// # Errors
/// When Debian's package libfaketime is not installed: `cargo xtask setup` does that.
pub fn clock_that_jumps(file: &Path) -> Result<Vec<(String, String)>> {
    let library = library().context("there is no libfaketime: cargo xtask setup installs it")?;
    Ok(vec![
        ("LD_PRELOAD".to_owned(), library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE".to_owned(), file.display().to_string()),
        ("FAKETIME_NO_CACHE".to_owned(), "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()),
    ])
}

/// It is in a directory of the architecture's.
fn library() -> Option<PathBuf> {
    let mut directories = PathBuf::from("/usr/lib").read_dir().ok()?.flatten();
    directories.find_map(|directory| {
        let library = directory.path().join("faketime/libfaketimeMT.so.1");
        library.exists().then_some(library)
    })
}
