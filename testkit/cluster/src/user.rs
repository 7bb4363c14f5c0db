//! The user of the server programs. PostgreSQL and PgBouncer do not run as root, so root must run
//! them as another user.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{User, geteuid};

/// The system user that Debian's packages create. [`ServerUser::Mapped`] needs only its name, and
/// not its privileges.
const NAME: &str = "postgres";

/// The identity of the server programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerUser {
    /// This process is not root: the server runs as the same user.
    Myself,
    /// This process is root: the server runs as user `postgres`.
    Other {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// This process is root in a directory that `postgres` cannot reach (`/root`, `mktemp -d`): the
    /// server runs as root, but in a user namespace that shows root as `postgres`. The uid that is
    /// shown must exist, because initdb looks up its name.
    Mapped {
        /// The user that is shown.
        uid: u32,
        /// The group that is shown.
        gid: u32,
    },
}

impl ServerUser {
    /// Finds an identity that can run `program` and write to the existing directory `dir`.
    /// `program` must accept `--version`.
    ///
    /// # Errors
    /// Fails when there is no such identity. The message contains the remedies.
    pub fn choose(program: &Path, dir: &Path) -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let user = User::from_name(NAME)?.with_context(|| {
            format!("there is no system user `{NAME}`: install PostgreSQL (cargo xtask setup)")
        })?;
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());

        let mut failures = Vec::new();
        for candidate in [Self::Other { uid, gid }, Self::Mapped { uid, gid }] {
            match candidate.try_out(program, dir) {
                Ok(()) => return Ok(candidate),
                Err(error) => failures.push(format!("  {candidate:?}: {error:#}")),
            }
        }
        // Make root the owner of the directory again, as before the attempts.
        chown(dir, Some(0), Some(0))?;
        bail!(
            "{program} does not run as root, and no other way was found to run it in {dir}:\n\
             {failures}\n\
             Do one of these: work as a user that is not root; move the checkout to a directory \
             that user `{NAME}` can reach (every directory above it needs `chmod o+x`); or allow \
             user namespaces (sysctl user.max_user_namespaces, or the container's seccomp \
             profile).",
            program = program.display(),
            dir = dir.display(),
            failures = failures.join("\n"),
        );
    }

    /// Runs commands to find out whether this identity can be used. Its privileges cannot be
    /// computed, because they depend on mount options, ACLs and namespaces.
    fn try_out(self, program: &Path, dir: &Path) -> Result<()> {
        self.own(dir)?;
        let probe = dir.join(".probe");
        for mut command in [self.command(program), self.command(Path::new("/bin/sh"))] {
            if command.get_program() == "/bin/sh" {
                command.args(["-c", ": >\"$0\""]).arg(&probe);
            } else {
                command.arg("--version");
            }
            let output = command
                .current_dir(dir)
                .stdin(Stdio::null())
                .output()
                .with_context(|| format!("cannot run {}", command.get_program().display()))?;
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
            }
        }
        fs::remove_file(probe)?;
        Ok(())
    }

    /// Returns the user id that owns the files of the server.
    pub(crate) fn uid(self) -> u32 {
        match self {
            Self::Myself => geteuid().as_raw(),
            Self::Other { uid, .. } => uid,
            Self::Mapped { .. } => 0,
        }
    }

    /// Makes the server's user the owner of `path`.
    pub fn own(self, path: &Path) -> Result<()> {
        let (uid, gid) = match self {
            Self::Myself => return Ok(()),
            Self::Other { uid, gid } => (uid, gid),
            Self::Mapped { .. } => (0, 0),
        };
        chown(path, Some(uid), Some(gid)).with_context(|| {
            format!(
                "cannot make the server's user the owner of {}",
                path.display()
            )
        })
    }

    /// Returns a command that runs as this user. Its environment does not affect the server, and
    /// libpq's variables do not connect a client to another server.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        clear_environment(&mut command);
        match self {
            Self::Myself => {}
            // std drops the supplementary groups as well when root sets a uid.
            Self::Other { uid, gid } => {
                command.uid(uid).gid(gid);
            }
            Self::Mapped { uid, gid } => {
                let uid_map = format!("{uid} 0 1\n");
                let gid_map = format!("{gid} 0 1\n");
                // SAFETY: between fork and exec only system calls are made; the strings were
                // allocated before.
                unsafe { command.pre_exec(move || enter_namespace(&uid_map, &gid_map)) };
            }
        }
        command
    }
}

/// Removes the variables that a PostgreSQL program must not see.
pub(crate) fn clear_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("PG") || name.starts_with("RUST_") {
            command.env_remove(name.as_ref());
        }
    }
    // The messages must be in English, because tests compare them.
    command.env("LC_ALL", "C").env_remove("LANGUAGE");
}

fn enter_namespace(uid_map: &str, gid_map: &str) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/uid_map", uid_map)?;
    // A process in the new namespace can map a gid only after it has given up `setgroups`.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", gid_map)
}
