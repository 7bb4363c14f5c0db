//! The install scripts, which CREATE EXTENSION runs. The build generates the script from the files
//! of `sql/`.
//!
//! Only the script of a released version is committed, in `sql/install`. It never changes, because
//! upgrade scripts are written against it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// All packages of the workspace have the same version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

fn file_name(version: &str) -> String {
    format!("idem--{version}.sql")
}

/// Returns the script of this version: the files of `sql/` in the order of
/// `extension/src/sql_files.rs`.
pub fn generate(root: &Path) -> Result<String> {
    let list = read(&root.join("extension/src/sql_files.rs"))?;
    let mut script =
        format!("-- The install script of idem {VERSION}, made from the files of sql/.\n");
    for file in sql_files(&list)? {
        write!(script, "\n-- {file}\n{}", read(&root.join(file))?)?;
    }
    Ok(script)
}

/// Returns the paths in the list of SQL files, relative to the root of the workspace.
fn sql_files(list: &str) -> Result<Vec<&str>> {
    let files: Vec<_> = list
        .split('"')
        .filter_map(|text| text.strip_prefix("../../"))
        .collect();
    ensure!(
        !files.is_empty(),
        "extension/src/sql_files.rs names no file"
    );
    Ok(files)
}

/// Writes what CREATE EXTENSION and ALTER EXTENSION read to a directory: the control file, the
/// script of this version, and the upgrade scripts.
pub fn write(root: &Path, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let control = read(&root.join("extension/idem.control"))?;
    let control = control.replace("@CARGO_VERSION@", VERSION);
    fs::write(directory.join("idem.control"), control)?;
    fs::write(directory.join(file_name(VERSION)), generate(root)?)?;
    let upgrades = root.join("extension/sql");
    if upgrades.exists() {
        for entry in fs::read_dir(upgrades)? {
            let entry = entry?;
            fs::copy(entry.path(), directory.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Writes the script of this version to `sql/install`. From then on the version is released.
/// Returns the path.
pub fn release(root: &Path) -> Result<PathBuf> {
    let path = released(root);
    ensure!(!path.exists(), "version {VERSION} is already released");
    fs::create_dir_all(root.join("sql/install"))?;
    fs::write(&path, generate(root)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Fails when this version is released and the build makes another script.
pub fn ensure_fits(root: &Path) -> Result<()> {
    let path = released(root);
    ensure!(
        !path.exists() || read(&path)? == generate(root)?,
        "version {VERSION} is released, and the build makes another script than {}: raise the \
         version, and write an upgrade script (docs/versioning.md)",
        path.display()
    );
    Ok(())
}

/// Returns the path of the script of this version when it is released.
fn released(root: &Path) -> PathBuf {
    root.join("sql/install").join(file_name(VERSION))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use xshell::{Shell, TempDir, cmd};

    use super::*;

    #[test]
    fn released_script_is_what_the_build_makes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        ensure_fits(root).unwrap();
    }

    /// Returns a workspace with one file of SQL.
    fn workspace() -> TempDir {
        let root = Shell::new().unwrap().create_temp_dir().unwrap();
        fs::create_dir_all(root.path().join("sql")).unwrap();
        fs::create_dir_all(root.path().join("extension/src")).unwrap();
        let list = root.path().join("extension/src/sql_files.rs");
        fs::write(list, "include!(\"../../sql/one.sql\")").unwrap();
        fs::write(root.path().join("sql/one.sql"), "SELECT 1;\n").unwrap();
        root
    }

    #[test]
    fn released_version_keeps_its_script() {
        let root = workspace();
        ensure_fits(root.path()).unwrap();
        let path = release(root.path()).unwrap();
        assert!(read(&path).unwrap().ends_with("SELECT 1;\n"));
        ensure_fits(root.path()).unwrap();
        let error = release(root.path()).unwrap_err().to_string();
        assert!(error.contains("already released"), "{error}");
        fs::write(root.path().join("sql/one.sql"), "SELECT 2;\n").unwrap();
        let error = ensure_fits(root.path()).unwrap_err().to_string();
        assert!(error.contains("raise the version"), "{error}");
    }

    #[test]
    fn script_has_each_sql_file_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let list = read(&root.join("extension/src/sql_files.rs")).unwrap();
        let mut listed = sql_files(&list).unwrap();
        listed.sort_unstable();
        let sh = Shell::new().unwrap();
        sh.change_dir(root);
        let files = cmd!(sh, "find sql -name *.sql -not -path sql/install/*")
            .read()
            .unwrap();
        let mut files: Vec<_> = files.lines().collect();
        files.sort_unstable();
        assert_eq!(listed, files);
        assert!(sql_files("// no file").is_err());
    }
}
