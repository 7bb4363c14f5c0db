//! The install scripts, which CREATE EXTENSION runs. The build generates the script from the files
//! of `sql/`.
//!
//! Only the script of a released version is committed, in `sql/install`. It never changes, because
//! upgrade scripts are written against it. `SHA256SUMS` lists the released scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use sha2::{Digest, Sha256};

/// All packages of the workspace have the same version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const SHA256SUMS: &str = "SHA256SUMS";

/// The directory with the upgrade scripts, relative to `sql/install`.
const UPGRADES: &str = "../../extension/sql";

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

/// The committed scripts, and the list of those that are released.
pub struct Committed {
    directory: PathBuf,
    /// The checksum of each released script, by file name.
    released: BTreeMap<String, String>,
}

impl Committed {
    pub fn open(root: &Path) -> Result<Self> {
        let directory = root.join("sql/install");
        let released = parse_sums(&read(&directory.join(SHA256SUMS))?)?;
        Ok(Self {
            directory,
            released,
        })
    }

    /// Writes the script of this version, and adds it and the upgrade scripts to this version to
    /// the list of released scripts. Returns its path.
    pub fn release(&self, version: &str, script: &str) -> Result<PathBuf> {
        self.check()?;
        let name = file_name(version);
        if self.released.contains_key(&name) {
            bail!("version {version} is already released");
        }
        let path = self.directory.join(&name);
        fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
        let list = self.directory.join(SHA256SUMS);
        let mut text = read(&list)?;
        for name in [name].into_iter().chain(self.upgrades_to(version)?) {
            writeln!(
                text,
                "{}  {name}",
                sha256(&read(&self.directory.join(&name))?)
            )?;
        }
        fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))?;
        Ok(path)
    }

    /// Returns the paths of the upgrade scripts to this version, relative to `sql/install`.
    fn upgrades_to(&self, version: &str) -> Result<Vec<String>> {
        let directory = self.directory.join(UPGRADES);
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(&format!("--{version}.sql")) {
                paths.push(format!("{UPGRADES}/{name}"));
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Fails when a released script has changed or is missing, or when there is a script of a
    /// version that is not released.
    pub fn check(&self) -> Result<()> {
        for (name, sum) in &self.released {
            let path = self.directory.join(name);
            ensure!(
                sha256(&read(&path)?) == *sum,
                "{} is released and must not change: restore the file, and raise the version to \
                 change the SQL (docs/versioning.md)",
                path.display()
            );
        }
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(
                self.released.contains_key(&name) || !name.ends_with(".sql"),
                "sql/install/{name} is not in {SHA256SUMS}: add the checksum of a released \
                 script, or remove the file"
            );
        }
        for released in self.released.keys() {
            let Some(version) = released.strip_prefix("idem--") else {
                continue;
            };
            for upgrade in self.upgrades_to(version.trim_end_matches(".sql"))? {
                ensure!(
                    self.released.contains_key(&upgrade),
                    "{upgrade} upgrades to a released version and is not in {SHA256SUMS}: add its \
                     checksum, or remove the file"
                );
            }
        }
        Ok(())
    }

    /// Fails when this version is released and the build makes another script.
    pub fn ensure_fits(&self, version: &str, script: &str) -> Result<()> {
        self.check()?;
        let name = file_name(version);
        ensure!(
            !self.released.contains_key(&name) || read(&self.directory.join(&name))? == script,
            "version {version} is released, and the build makes another script than \
             sql/install/{name}: raise the version, and write an upgrade script \
             (docs/versioning.md)"
        );
        Ok(())
    }
}

/// Parses a list in the format of `sha256sum`. Lines that begin with `#` are comments.
fn parse_sums(text: &str) -> Result<BTreeMap<String, String>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (sum, name) = line
                .split_once("  ")
                .with_context(|| format!("{SHA256SUMS}: not a checksum and a file name: {line}"))?;
            Ok((name.to_owned(), sum.to_owned()))
        })
        .collect()
}

fn sha256(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use xshell::{Shell, TempDir, cmd};

    use super::*;

    #[test]
    fn released_scripts_are_unchanged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Committed::open(root).unwrap().check().unwrap();
    }

    /// Returns a workspace in which version 1.0.0 is released, with an upgrade from 0.9.0, and
    /// version 1.1.0 is not.
    fn workspace() -> TempDir {
        let root = Shell::new().unwrap().create_temp_dir().unwrap();
        let upgrades = root.path().join("extension/sql");
        fs::create_dir_all(root.path().join("sql/install")).unwrap();
        fs::create_dir_all(&upgrades).unwrap();
        for name in ["idem--0.9.0--1.0.0.sql", "idem--1.0.0--1.1.0.sql"] {
            fs::write(upgrades.join(name), "SELECT 4;\n").unwrap();
        }
        fs::write(root.path().join("sql/install/SHA256SUMS"), "# Comment.\n").unwrap();
        let committed = Committed::open(root.path()).unwrap();
        committed.release("1.0.0", "SELECT 1;\n").unwrap();
        root
    }

    #[test]
    fn released_script_is_written_once() {
        let root = workspace();
        let committed = Committed::open(root.path()).unwrap();
        assert_eq!(committed.released.len(), 2, "{:?}", committed.released);
        committed.check().unwrap();
        let error = committed.release("1.0.0", "SELECT 3;\n").unwrap_err();
        assert!(error.to_string().contains("already released"), "{error}");
        let path = committed.directory.join("idem--1.0.0.sql");
        assert_eq!(fs::read_to_string(path).unwrap(), "SELECT 1;\n");
        let path = committed.release("1.1.0", "SELECT 2;\n").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "SELECT 2;\n");
        let committed = Committed::open(root.path()).unwrap();
        assert_eq!(committed.released.len(), 4, "{:?}", committed.released);
        committed.check().unwrap();
    }

    #[test]
    fn sha256sum_reads_the_list_of_released_scripts() {
        let root = workspace();
        let sh = Shell::new().unwrap();
        sh.change_dir(root.path().join("sql/install"));
        cmd!(sh, "sha256sum --check --strict --quiet SHA256SUMS")
            .run()
            .unwrap();
    }

    #[test]
    fn each_damage_to_the_committed_scripts_is_named() {
        type Damage = fn(&Path) -> std::io::Result<()>;
        let damages: [(&str, Damage); 6] = [
            ("idem--0.9.0--1.0.0.sql is released and must not", |dir| {
                fs::write(
                    dir.join("../../extension/sql/idem--0.9.0--1.0.0.sql"),
                    "SELECT 5;\n",
                )
            }),
            ("idem--1.0.0.sql is released and must not change", |dir| {
                fs::write(dir.join("idem--1.0.0.sql"), "SELECT 1; \n")
            }),
            ("idem--1.0.0.sql", |dir| {
                fs::remove_file(dir.join("idem--1.0.0.sql"))
            }),
            ("idem--0.8.0--1.0.0.sql upgrades to a released", |dir| {
                fs::write(dir.join("../../extension/sql/idem--0.8.0--1.0.0.sql"), "")
            }),
            ("idem--0.9.0.sql is not in SHA256SUMS", |dir| {
                fs::write(dir.join("idem--0.9.0.sql"), "")
            }),
            ("idem--1.0.0.sql is not in SHA256SUMS", |dir| {
                fs::write(dir.join("SHA256SUMS"), "")
            }),
        ];
        for (expected, damage) in damages {
            let root = workspace();
            damage(&root.path().join("sql/install")).unwrap();
            let error = Committed::open(root.path())
                .unwrap()
                .check()
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn package_of_a_released_version_has_its_script() {
        let root = workspace();
        let committed = Committed::open(root.path()).unwrap();
        committed.ensure_fits("1.0.0", "SELECT 1;\n").unwrap();
        committed.ensure_fits("1.1.0", "SELECT 3;\n").unwrap();
        let error = committed
            .ensure_fits("1.0.0", "SELECT 3;\n")
            .unwrap_err()
            .to_string();
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
