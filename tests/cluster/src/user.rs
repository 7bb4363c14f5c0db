//! Who runs the server programs. PostgreSQL and PgBouncer refuse root, so root has to become
//! somebody else.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{User, geteuid};

/// The system user that Debian's packages create; its name is needed even where its rights are not
/// (see [`ServerUser::Mapped`]).
const NAME: &str = "postgres";

/// The identity of the server programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerUser {
    /// We are not root: the server runs as we do.
    Myself,
    /// We are root: the server runs as user `postgres`.
    Other {
        /// Its number.
        uid: u32,
        /// That of its group.
        gid: u32,
    },
    /// We are root in a directory that `postgres` cannot reach (`/root`, `mktemp -d`): the server
    /// runs as root, but in a user namespace that shows root as `postgres`. The uid shown must
    /// exist, because initdb looks its name up.
    Mapped {
        /// The user that is shown.
        uid: u32,
        /// The group that is shown.
        gid: u32,
    },
}

impl ServerUser {
    /// Finds the identity that can run `program` and write to `dir`, which exists, by trying. It
    /// answers `--version`.
    ///
    /// # Errors
    /// When there is none; the message says what to do.
    pub fn choose(program: &Path, dir: &Path) -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let user = User::from_name(NAME)?.with_context(|| {
            format!("there is no system user `{NAME}`: install PostgreSQL (cargo xtask setup)")
        })?;
        let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());

        let mut refusals = Vec::new();
        for candidate in [Self::Other { uid, gid }, Self::Mapped { uid, gid }] {
            match candidate.try_out(program, dir) {
                Ok(()) => return Ok(candidate),
                Err(error) => refusals.push(format!("  {candidate:?}: {error:#}")),
            }
        }
        // The directory goes back to root, as it was found.
        chown(dir, Some(0), Some(0))?;
        bail!(
            "{program} refuses to run as root, and no other way was found to run it in {dir}:\n{refusals}\n\
             Do one of these: work as a user who is not root; move the checkout to where user `{NAME}` can reach it \
             (every directory above it needs `chmod o+x`); or allow user namespaces (sysctl user.max_user_namespaces, \
             or the container's seccomp profile).",
            program = program.display(),
            dir = dir.display(),
            refusals = refusals.join("\n"),
        );
    }

    /// Rights are not computed but tried: mount options, ACLs and namespaces all have a say.
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

    /// Gives `path` to the server's user.
    ///
    /// # Errors
    /// When that is not allowed.
    pub fn own(self, path: &Path) -> Result<()> {
        let (uid, gid) = match self {
            Self::Myself => return Ok(()),
            Self::Other { uid, gid } => (uid, gid),
            Self::Mapped { .. } => (0, 0),
        };
        chown(path, Some(uid), Some(gid))
            .with_context(|| format!("cannot give {} to the server's user", path.display()))
    }

    /// A command that will run as this user, with an environment that does not leak into the
    /// server: with `RUST_BACKTRACE` set the extension would put backtraces into error details, and
    /// libpq's variables would lead a client astray.
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

/// Leaves only what a PostgreSQL program should see.
pub(crate) fn clear_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("PG") || name.starts_with("RUST_") {
            command.env_remove(name.as_ref());
        }
    }
    // Messages are compared by tests.
    command.env("LC_ALL", "C").env_remove("LANGUAGE");
}

fn enter_namespace(uid_map: &str, gid_map: &str) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/uid_map", uid_map)?;
    // A gid can be mapped from inside only by a process that has renounced setgroups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", gid_map)
}
