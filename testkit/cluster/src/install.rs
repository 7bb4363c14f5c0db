//! A private copy of PostgreSQL's programs. The extension is installed in it without a change to
//! the machine's PostgreSQL.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The major version that is used when none is given.
const DEFAULT_VERSION: u16 = 15;

/// A tree with PostgreSQL's programs, libraries and shared files, in Debian's layout under one
/// root.
///
/// PostgreSQL finds its libraries and shared files relative to the real path of its executable. A
/// tree that is copied, and not linked, is therefore complete in itself.
#[derive(Clone, Debug)]
pub struct Install {
    root: PathBuf,
    version: u16,
}

impl Install {
    /// Opens the install that the environment names with `IDEM_PG_INSTALL` and `IDEM_PG_VERSION`.
    /// The default is `target/pg/15`.
    ///
    /// # Errors
    /// Fails when this install does not exist. `cargo xtask setup` makes it.
    pub fn from_env() -> Result<Self> {
        let version = match std::env::var("IDEM_PG_VERSION") {
            Ok(text) => text
                .parse()
                .with_context(|| format!("IDEM_PG_VERSION={text} is not a major version"))?,
            Err(_) => DEFAULT_VERSION,
        };
        let root = std::env::var_os("IDEM_PG_INSTALL")
            .map_or_else(|| Self::default_root(version), PathBuf::from);
        Self::open(&root, version)
    }

    /// Returns the directory of the copy of a major version in this workspace.
    #[must_use]
    pub fn default_root(version: u16) -> PathBuf {
        crate::workspace_root()
            .join("target/pg")
            .join(version.to_string())
    }

    /// Opens the install that is at `root`.
    pub fn open(root: &Path, version: u16) -> Result<Self> {
        let install = Self {
            root: root.to_path_buf(),
            version,
        };
        let postgres = install.bin_dir().join("postgres");
        ensure!(
            postgres.is_file(),
            "{} does not exist: run `cargo xtask setup`",
            postgres.display()
        );
        Ok(install)
    }

    /// Copies the files that are new or have changed in the machine's PostgreSQL (Debian's layout)
    /// to `root`.
    ///
    /// # Errors
    /// Fails when the machine does not have this version, or when the copy does not find its own
    /// files.
    pub fn copy_from_system(root: &Path, version: u16) -> Result<Self> {
        let lib = format!("usr/lib/postgresql/{version}");
        let share = format!("usr/share/postgresql/{version}");
        ensure!(
            Path::new("/").join(&lib).join("bin/postgres").is_file(),
            "PostgreSQL {version} is not installed on this machine: run `cargo xtask setup`"
        );
        for part in [&lib, &share] {
            copy_tree(&Path::new("/").join(part), &root.join(part), &is_needed)?;
        }
        let install = Self::open(root, version)?;
        install.check_relocated()?;
        Ok(install)
    }

    /// Copies a package of the extension (a tree ready for `/`) over this copy, and removes the
    /// files that an earlier package left.
    pub fn overlay(&self, package: &Path) -> Result<()> {
        copy_tree(package, &self.root, &|_| true)?;
        let extension = self.share_dir().join("extension");
        let packaged = package.join(extension.strip_prefix(&self.root)?);
        for entry in fs::read_dir(&extension)? {
            let name = entry?.file_name();
            let is_ours = name.to_string_lossy().starts_with("idem--");
            if is_ours && !packaged.join(&name).exists() {
                fs::remove_file(extension.join(name))?;
            }
        }
        Ok(())
    }

    /// Returns the major version.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Returns the root directory of the tree, which corresponds to `/`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory of `postgres`, `psql`, `pg_dump` and the other programs.
    #[must_use]
    pub fn bin_dir(&self) -> PathBuf {
        self.lib_root().join("bin")
    }

    /// Returns the directory of control files, scripts and samples.
    #[must_use]
    pub fn share_dir(&self) -> PathBuf {
        self.root
            .join("usr/share/postgresql")
            .join(self.version.to_string())
    }

    /// Returns the path of a program. `pg_regress`, `pg_isolation_regress` and `isolationtester`
    /// are found as well.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let tests = self.lib_root().join("lib/pgxs/src/test");
        [
            self.bin_dir(),
            tests.join("isolation"),
            tests.join("regress"),
        ]
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "PostgreSQL {} in {} has no program {name}",
                self.version,
                self.root.display()
            )
        })
    }

    fn lib_root(&self) -> PathBuf {
        self.root
            .join("usr/lib/postgresql")
            .join(self.version.to_string())
    }

    /// Fails when the copy looks for files in the machine's own directories. Such a copy would not
    /// load the extension under test.
    fn check_relocated(&self) -> Result<()> {
        let output = Command::new(self.program("pg_config")?)
            .arg("--sharedir")
            .output()?;
        let reported = String::from_utf8(output.stdout)?;
        let reported = Path::new(reported.trim()).canonicalize()?;
        let expected = self.share_dir().canonicalize()?;
        if reported != expected {
            bail!(
                "the copied PostgreSQL looks for its files in {} and not in {}: \
                 this build is not relocatable",
                reported.display(),
                expected.display()
            );
        }
        Ok(())
    }
}

/// Returns whether a running server may open the file. A server also opens the bitcode files,
/// because compiled plans inline functions from them.
fn is_needed(path: &Path) -> bool {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy())
        .unwrap_or_default();
    !matches!(name.as_ref(), "man" | "doc" | "locale" | "perl") && !name.ends_with(".a")
}

/// Copies the files below `from` that differ in size or age. Links are followed, because the copy
/// must be complete in itself.
fn copy_tree(from: &Path, to: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let source = entry?.path();
        if !wanted(&source) {
            continue;
        }
        let Some(name) = source.file_name() else {
            continue;
        };
        let target = to.join(name);
        // Some of Debian's links point to dictionaries that are not installed. These links are
        // skipped.
        let Ok(metadata) = fs::metadata(&source) else {
            continue;
        };
        if metadata.is_dir() {
            copy_tree(&source, &target, wanted)?;
        } else if !is_same(&metadata, &target) {
            copy_file(&source, &metadata, &target)
                .with_context(|| format!("cannot copy {}", source.display()))?;
        }
    }
    Ok(())
}

fn is_same(source: &fs::Metadata, target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|target| {
        target.len() == source.len() && target.modified().ok() == source.modified().ok()
    })
}

/// Replaces the old file in one step, so that a running server keeps the library that it has
/// mapped.
fn copy_file(source: &Path, metadata: &fs::Metadata, target: &Path) -> Result<()> {
    let mut draft = target.as_os_str().to_owned();
    draft.push(".new");
    fs::copy(source, &draft)?;
    File::options()
        .write(true)
        .open(&draft)?
        .set_modified(metadata.modified()?)?;
    fs::rename(draft, target)?;
    Ok(())
}
