//! Installs Debian packages that are missing.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;
use xshell::cmd;

use crate::context::Context;
use crate::step;
use crate::suite::is_debian_like;

/// Runs a command that installs packages, and keeps the packages from creating clusters and
/// starting services, by two files. The package of PostgreSQL reads the first file, `$cluster`. All
/// other packages read the second file, `$policy`, which is not changed if it exists already. Both
/// files exist only while the command runs, also when it fails or is interrupted: if the second
/// file stayed, no service that is installed later would start. The first argument is put before
/// all paths.
const QUIETLY: &str = r#"set -e
cluster=$1/etc/postgresql-common/createcluster.d/idem-setup.conf
policy=$1/usr/sbin/policy-rc.d
shift
trap 'rm -f "$cluster"; if grep -qs "of the set-up of idem" "$policy"; then rm "$policy"; fi' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "${cluster%/*}"
echo 'create_main_cluster = false' >"$cluster"
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\n# of the set-up of idem\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
"$@""#;

/// Disables the services of packages that have just been installed, so that they do not start with
/// the machine. The arguments are the packages.
const STAY_QUIET: &str = r#"set -e
command -v systemctl >/dev/null || exit 0
dpkg-query --listfiles "$@" |
    sed -n 's,^.*/systemd/system/\([^/@]*\.\(service\|socket\)\)$,\1,p' |
    xargs -r systemctl disable"#;

/// The Debian packages that the extension and the demo need, with the reason for each. NN is the
/// major version of PostgreSQL.
#[rustfmt::skip]
const BUILD: [(&str, &str); 7] = [
    ("postgresql-NN", "the server; the demo and the tests run a copy of its programs"),
    ("postgresql-server-dev-NN", "its headers, to build the extension, and its isolation tester"),
    ("gcc", "the linker, for everything that is built; compiles a clock of the tests"),
    ("libc6-dev", "the C library to link with"),
    ("clang", "compiles the C code between Rust and the server's headers"),
    ("libclang-dev", "reads the server's headers to make Rust bindings (bindgen)"),
    ("ca-certificates", "lets cargo verify the servers from which it downloads"),
];

/// The packages that everything else needs: the tests, the benchmarks, the demo over brokers.
#[rustfmt::skip]
const TESTS: [(&str, &str); 13] = [
    ("libpq-dev", "the C client; a test compiles an example of the documentation with it"),
    ("g++", "compiles librdkafka, the client library of Kafka"),
    ("make", "builds librdkafka"),
    ("zlib1g-dev", "the compression in librdkafka"),
    ("pkg-config", "finds the libraries that librdkafka links with"),
    ("libssl-dev", "the Kafka client links with it"),
    ("erlang-base", "the runtime of RabbitMQ"),
    ("rabbitmq-server", "a broker that the tests start"),
    ("nats-server", "another broker that the tests start"),
    ("redis-server", "the store of BullMQ, a queue for Node.js that the tests start"),
    ("pgbouncer", "a proxy that the tests put in front of the server"),
    ("python3-aiosmtpd", "a mail server that the tests start"),
    ("python3-venv", "installs the drivers of Python and Node.js that the tests execute"),
];

/// The languages whose drivers `cargo xtask test drivers` executes, besides those of the set-up.
#[rustfmt::skip]
const LANGUAGES: [(&str, &str); 21] = [
    ("perl", "the modules of Perl for JSON and base64"),
    ("libdbd-pg-perl", "DBD::Pg, a driver for Perl"),
    ("libanyevent-rabbitmq-perl", "the broker's client for the consumer in Perl"),
    ("ruby", "Ruby"),
    ("ruby-pg", "pg, a driver for Ruby"),
    ("ruby-bunny", "the broker's client for the consumer in Ruby"),
    ("php-cli", "PHP"),
    ("php-pgsql", "PDO, a driver for PHP"),
    ("php-amqplib", "the broker's client for the consumer in PHP"),
    ("golang-go", "Go"),
    ("golang-github-jackc-pgx-v4-dev", "pgx, a driver for Go"),
    ("golang-github-rabbitmq-amqp091-go-dev", "the broker's client for the consumer in Go"),
    ("default-jdk-headless", "Java"),
    ("libpostgresql-jdbc-java", "pgJDBC, a driver for Java"),
    ("libjackson2-databind-java", "JSON in Java"),
    ("librabbitmq-client-java", "the broker's client for the consumer in Java"),
    ("libspring-jdbc-java", "Spring: JdbcTemplate and its transactions"),
    ("libspring-aop-java", "Spring: the proxies of @Transactional"),
    ("libaopalliance-java", "the interfaces of these proxies"),
    ("libjansson-dev", "JSON in C"),
    ("librabbitmq-dev", "the broker's client for the consumer in C"),
];

/// Since version 18, Debian's server has JIT compilation only with this package. A test needs JIT
/// compilation.
const JIT: (&str, &str) = ("postgresql-NN-jit", "compiles plans");
/// The first version with the separate package.
const JIT_IS_APART_SINCE: u16 = 18;

/// The name of a package, and the reason for it.
pub type Package = (String, &'static str);

/// Returns the packages that the extension and the demo need with this version of PostgreSQL.
pub fn for_build(pg: u16) -> Vec<Package> {
    let all = BUILD.into_iter();
    all.map(|(name, reason)| (name.replace("NN", &pg.to_string()), reason))
        .collect()
}

/// Returns the packages that the tests need in addition.
pub fn for_tests(pg: u16) -> Vec<Package> {
    let jit = (pg >= JIT_IS_APART_SINCE).then_some(JIT);
    let all = TESTS.into_iter().chain(jit);
    all.map(|(name, reason)| (name.replace("NN", &pg.to_string()), reason))
        .collect()
}

/// Returns the packages with which all drivers can be executed.
pub fn languages() -> Vec<Package> {
    let all = LANGUAGES.into_iter();
    all.map(|(name, reason)| (name.to_owned(), reason))
        .collect()
}

/// Installs the packages that are missing.
pub fn install(context: &Context, all: &[Package]) -> Result<()> {
    if !is_debian_like() {
        bail!(
            "this machine does not run Debian, so nothing was installed. On Debian 12 (or in a \
             container of it) this command installs:\n{}",
            describe(all)
        );
    }
    let missing: Vec<_> = all
        .iter()
        .filter(|(name, _)| !is_installed(context, name))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!(
        "These Debian packages are missing and will be installed:\n{}",
        describe(&missing)
    );
    let apt = Apt::new(&missing)?;

    let names: Vec<_> = missing.iter().map(|(name, _)| name.as_str()).collect();
    install_quietly(context, &apt, &names)
}

fn install_quietly(context: &Context, apt: &Apt, names: &[&str]) -> Result<()> {
    apt.as_root(context, "apt-get update", &["apt-get", "update"])?;
    let install = [
        "sh",
        "-c",
        QUIETLY,
        "sh",
        "",
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "install",
        "-y",
        "--no-install-recommends",
    ];
    apt.as_root(context, "apt-get install", &[&install, names].concat())?;
    // The services of PostgreSQL stay enabled: they only start clusters, and no cluster exists
    // until a user creates it.
    let quiet: Vec<_> = names
        .iter()
        .copied()
        .filter(|name| !name.starts_with("postgresql"))
        .collect();
    apt.as_root(
        context,
        "disabling the services of the packages",
        &[&["sh", "-c", STAY_QUIET, "sh"], quiet.as_slice()].concat(),
    )
}

/// Runs commands as root.
struct Apt {
    prefix: Option<&'static str>,
    advice: String,
}

impl Apt {
    fn new(missing: &[Package]) -> Result<Self> {
        let names: Vec<_> = missing.iter().map(|(name, _)| name.as_str()).collect();
        let advice = format!(
            "check that this machine reaches its package mirror, then try again; or install the \
             packages by hand, as root: apt-get update && apt-get install {}",
            names.join(" ")
        );
        if geteuid().is_root() {
            return Ok(Self {
                prefix: None,
                advice,
            });
        }
        // sudo may ask for a password. It is run here once with the terminal, because the later
        // steps have no terminal.
        let allowed = Command::new("sudo")
            .arg("-v")
            .status()
            .is_ok_and(|status| status.success());
        ensure!(
            allowed,
            "the installation needs root, and sudo does not allow it. What to do: {advice}"
        );
        Ok(Self {
            prefix: Some("sudo"),
            advice,
        })
    }

    fn as_root(&self, context: &Context, label: &str, arguments: &[&str]) -> Result<()> {
        let mut words = self.prefix.iter().copied().chain(arguments.iter().copied());
        let program = words.next().context("the command is empty")?;
        step::run(
            label,
            context.sh.cmd(program).args(words).into(),
            &self.advice,
        )
    }
}

fn is_installed(context: &Context, package: &str) -> bool {
    let sh = &context.sh;
    let format = "--showformat=${Status}";
    cmd!(sh, "dpkg-query --show {format} {package}")
        .quiet()
        .ignore_stderr()
        .read()
        .is_ok_and(|status| status == "install ok installed")
}

fn describe(packages: &[Package]) -> String {
    let lines: Vec<_> = packages
        .iter()
        .map(|(name, reason)| format!("  {name}: {reason}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;

    use super::*;

    /// Runs [`QUIETLY`] with this script. Returns its exit code, whether its two files existed
    /// during the script, and whether one of them exists afterwards.
    fn quietly(root: &Path, script: &str) -> (Option<i32>, bool, bool) {
        let look = "test -s \"$0/etc/postgresql-common/createcluster.d/idem-setup.conf\" && \
                    test -s \"$0/usr/sbin/policy-rc.d\" && : >\"$0/seen\";";
        // A shell cannot trap a signal that its parent ignores, as `nohup` does with SIGHUP.
        let status = Command::new("env")
            .args(["--default-signal=HUP,INT,TERM", "sh", "-c", QUIETLY, "sh"])
            .arg(root)
            .args(["sh", "-c", &format!("{look} {script}")])
            .arg(root)
            .status()
            .unwrap();
        assert_eq!(status.signal(), None);
        let left = [
            "etc/postgresql-common/createcluster.d/idem-setup.conf",
            "usr/sbin/policy-rc.d",
        ];
        let was_quiet = fs::remove_file(root.join("seen")).is_ok();
        (
            status.code(),
            was_quiet,
            left.iter().any(|file| root.join(file).exists()),
        )
    }

    fn root() -> xshell::TempDir {
        let root = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        root
    }

    #[test]
    fn both_files_are_removed_however_the_command_ends() {
        let root = root();
        assert_eq!(quietly(root.path(), "true"), (Some(0), true, false));
        assert_eq!(quietly(root.path(), "exit 100"), (Some(100), true, false));
        for (signal, code) in [("HUP", 129), ("INT", 130), ("TERM", 143)] {
            assert_eq!(
                quietly(root.path(), &format!("kill -{signal} $PPID")),
                (Some(code), true, false),
                "{signal}"
            );
        }
    }

    #[test]
    fn jit_is_a_separate_package_since_18() {
        let has_jit = |pg| {
            for_tests(pg)
                .iter()
                .any(|(name, _)| *name == format!("postgresql-{pg}-jit"))
        };
        assert_eq!([15, 17, 18].map(has_jit), [false, false, true]);
    }

    #[test]
    fn policy_of_the_machine_is_kept() {
        let root = root();
        let policy = root.path().join("usr/sbin/policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 101\n").unwrap();
        assert_eq!(quietly(root.path(), "true"), (Some(0), true, true));
        assert_eq!(fs::read_to_string(policy).unwrap(), "#!/bin/sh\nexit 101\n");
    }
}
