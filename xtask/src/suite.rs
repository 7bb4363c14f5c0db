//! The Debian suites that idem supports. A suite decides the version of PostgreSQL and of every
//! other package: the brokers, PgBouncer, the mail server.

use std::fmt;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use xshell::{Shell, cmd};

use crate::step;

/// The versions of PostgreSQL for which the extension can be built.
const SUPPORTED: std::ops::RangeInclusive<u16> = 15..=18;

/// A Debian suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Debian 12, with PostgreSQL 15
    Bookworm,
    /// Debian 13, with PostgreSQL 17
    Trixie,
    /// Unstable, with the newest PostgreSQL that Debian has
    Sid,
}

impl Suite {
    pub const ALL: [Self; 3] = [Self::Bookworm, Self::Trixie, Self::Sid];

    /// Returns the suite of this machine, or `None` when the machine runs another system.
    pub fn of_this_machine() -> Option<Self> {
        let debian_version = fs::read_to_string("/etc/debian_version").unwrap_or_default();
        Self::from_release(&os_release(), &debian_version)
    }

    /// Returns the suite of a release. A `debian_version` that ends with `/sid` belongs to sid or
    /// to testing, and both count as sid. The codename cannot be compared instead, because testing
    /// gets a new codename after each release.
    fn from_release(os_release: &str, debian_version: &str) -> Option<Self> {
        if os_release_field(os_release, "ID") != Some("debian") {
            return None;
        }
        match os_release_field(os_release, "VERSION_CODENAME") {
            Some("bookworm") => Some(Self::Bookworm),
            Some("trixie") => Some(Self::Trixie),
            _ => debian_version.trim().ends_with("/sid").then_some(Self::Sid),
        }
    }

    /// Returns the major version of PostgreSQL. For sid this is the version of its current package.
    pub fn postgresql(self, sh: &Shell) -> Result<u16> {
        match self {
            Self::Bookworm => Ok(15),
            Self::Trixie => Ok(17),
            Self::Sid => newest(sh),
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        })
    }
}

/// Returns the codename of this machine's release.
pub fn codename() -> Option<String> {
    os_release_field(&os_release(), "VERSION_CODENAME").map(str::to_owned)
}

/// Returns whether this machine runs Debian or a distribution that is made from it.
pub fn is_debian_like() -> bool {
    let release = os_release();
    ["ID", "ID_LIKE"]
        .iter()
        .filter_map(|name| os_release_field(&release, name))
        .any(|ids| ids.split(' ').any(|id| id == "debian"))
}

fn os_release() -> String {
    fs::read_to_string("/etc/os-release").unwrap_or_default()
}

fn os_release_field<'r>(os_release: &'r str, name: &str) -> Option<&'r str> {
    os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .find_map(|(field, value)| (field == name).then(|| value.trim_matches('"')))
}

/// Returns the major version of the PostgreSQL package in the lists of apt. Updates the lists when
/// they do not contain the package.
fn newest(sh: &Shell) -> Result<u16> {
    let show = || {
        let show = cmd!(sh, "apt-cache --no-all-versions show postgresql");
        show.quiet().ignore_stderr().ignore_status().read()
    };
    let mut package = show()?;
    if package.is_empty() {
        step::run(
            "apt-get update",
            cmd!(sh, "apt-get update").into(),
            "run `apt-get update` as root, then try again",
        )?;
        package = show()?;
    }
    supported(major_version(&package).context("apt has no package postgresql in this suite")?)
}

/// Returns the major version on which the package postgresql depends.
fn major_version(package: &str) -> Option<u16> {
    package.lines().find_map(|line| {
        let dependency = line.strip_prefix("Depends: postgresql-")?;
        dependency
            .split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    })
}

fn supported(version: u16) -> Result<u16> {
    ensure!(
        SUPPORTED.contains(&version),
        "this suite has PostgreSQL {version}, but idem can be built for {} to {} only",
        SUPPORTED.start(),
        SUPPORTED.end()
    );
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str = "NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n";

    #[test]
    fn suite_of_a_machine_is_its_codename() {
        assert_eq!(
            Suite::from_release(BOOKWORM, "12.11\n"),
            Some(Suite::Bookworm)
        );
        let trixie = BOOKWORM.replace("bookworm", "trixie");
        assert_eq!(Suite::from_release(&trixie, "13.1\n"), Some(Suite::Trixie));
    }

    #[test]
    fn suite_of_testing_and_unstable_is_sid() {
        let forky = BOOKWORM.replace("bookworm", "forky");
        assert_eq!(Suite::from_release(&forky, "forky/sid\n"), Some(Suite::Sid));
    }

    #[test]
    fn other_releases_have_no_suite() {
        let bullseye = BOOKWORM.replace("bookworm", "bullseye");
        assert_eq!(Suite::from_release(&bullseye, "11.9\n"), None);
        let ubuntu = "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n";
        assert_eq!(Suite::from_release(ubuntu, "trixie/sid\n"), None);
        assert_eq!(Suite::from_release("", ""), None);
    }

    #[test]
    fn version_of_sid_is_read_from_its_package() {
        let package = "Package: postgresql\nVersion: 18+291\nDepends: postgresql-18\n\
                       Suggests: postgresql-doc\n";
        assert_eq!(major_version(package), Some(18));
        let versioned = package.replace("postgresql-18\n", "postgresql-19 (>= 19.1), adduser\n");
        assert_eq!(major_version(&versioned), Some(19));
        assert_eq!(
            major_version("Package: postgresql-18\nDepends: libc6\n"),
            None
        );
    }

    #[test]
    fn version_without_support_is_an_error() {
        assert_eq!(supported(18).unwrap(), 18);
        let error = supported(19).unwrap_err().to_string();
        assert!(
            error.contains("PostgreSQL 19") && error.contains("15 to 18"),
            "{error}"
        );
    }
}
