//! From nothing, or from another cluster, to a server that answers.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::home::Home;
use crate::install::Install;
use crate::loopback;
use crate::user::ServerUser;

/// What a new cluster has unless the caller changes it. Each line differs from PostgreSQL's default
/// and gives the reason; none changes how a statement is planned or executed, because tests and
/// benchmarks show what users get.
const DEFAULTS: [(&str, &str); 9] = [
    // Tests kill processes, not machines: what was written is there without fsync. Benchmarks set
    // it on.
    ("fsync", "off"),
    // Every test binary starts servers; the tables of a test are small.
    ("shared_buffers", "256MB"),
    // Prepared transactions are a feature under test.
    ("max_prepared_transactions", "20"),
    // No checkpoint begins in the middle of a test because of the WAL of the tests beside it.
    ("max_wal_size", "4GB"),
    // Sockets only: servers of several runs share a machine.
    ("listen_addresses", ""),
    ("log_line_prefix", "%m [%p] %q%a "),
    // Tests read the log.
    ("log_checkpoints", "off"),
    ("lc_messages", "C"),
    ("timezone", "UTC"),
];

/// Where the data of a new cluster comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A new cluster.
    Initdb,
    /// A copy of a running one, which it then follows.
    StandbyOf { connection: String },
}

/// Says how a cluster shall be; [`Builder::start`] makes it so.
#[derive(Clone, Debug)]
pub struct Builder {
    install: Install,
    name: String,
    source: Source,
    settings: BTreeMap<String, String>,
    environment: Vec<(String, String)>,
    preload: bool,
    data_dir: Option<PathBuf>,
    address: Option<Ipv4Addr>,
    /// The certificate, its key, and the authority of the clients' certificates.
    tls: Option<(PathBuf, PathBuf, PathBuf)>,
    hba: Option<String>,
}

impl Builder {
    pub(crate) fn new(install: &Install) -> Self {
        Self {
            install: install.clone(),
            name: "cluster".to_owned(),
            source: Source::Initdb,
            settings: DEFAULTS
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            environment: Vec::new(),
            preload: true,
            data_dir: None,
            address: None,
            tls: None,
            hba: None,
        }
    }

    /// A standby has to have at least its primary's limits, so it starts from the same settings.
    pub(crate) fn standby_of(primary: &Cluster) -> Self {
        Self {
            install: primary.install().clone(),
            name: format!("{}-standby", primary.name()),
            source: Source::StandbyOf {
                connection: primary.connection_string("postgres"),
            },
            settings: primary.settings().clone(),
            environment: Vec::new(),
            preload: true,
            data_dir: None,
            address: None,
            tls: None,
            hba: None,
        }
        .preload(primary.settings().contains_key("shared_preload_libraries"))
    }

    /// The name that its directory begins with; `cluster` if none is given.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// A line of `postgresql.conf`. The value is written as it is meant, quoting is done here.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A variable of the server's environment, at every start.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether the server loads `idem` at its start (the worker, the counters and the wake-up need
    /// that). It does by default.
    #[must_use]
    pub fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// Data that shall stay: a directory of the caller's, which is initialised if it is empty, and
    /// never removed.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Listens on a loopback address that no other server has, on PostgreSQL's own port.
    ///
    /// # Errors
    /// When no address is free.
    pub fn tcp(mut self) -> Result<Self> {
        let address = loopback::free(5432)?;
        self.address = Some(address);
        Ok(self.setting("listen_addresses", &address.to_string()))
    }

    /// Offers TLS with this certificate and key. `client_ca` signs the certificates of clients.
    #[must_use]
    pub fn tls(mut self, certificate: &Path, key: &Path, client_ca: &Path) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned(), client_ca.to_owned()));
        self
    }

    /// The lines of `pg_hba.conf` for TCP. Without them every connection is trusted.
    #[must_use]
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba = Some(lines.to_owned());
        self
    }

    /// Makes the data directory, starts the server and waits until it answers.
    ///
    /// # Errors
    /// When a program fails or the server does not answer in a minute; the message ends with the
    /// last lines of its log.
    pub fn start(mut self) -> Result<Cluster> {
        if self.preload {
            self.settings
                .entry("shared_preload_libraries".to_owned())
                .or_insert_with(|| "idem".to_owned());
        } else {
            self.settings.remove("shared_preload_libraries");
        }
        let home = Home::create(&self.name)?;
        let user = ServerUser::choose(&self.install.program("postgres")?, home.dir())?;
        user.own(home.socket_dir())?;
        self.settings.insert(
            "unix_socket_directories".to_owned(),
            home.socket_dir().display().to_string(),
        );

        let data_dir = self
            .data_dir
            .clone()
            .unwrap_or_else(|| home.dir().join("data"));
        if !data_dir.join("PG_VERSION").exists() {
            self.fill(&data_dir, user)?;
        }
        self.copy_tls(&data_dir, user)?;
        if let Some(lines) = &self.hba {
            fs::write(
                data_dir.join("pg_hba.conf"),
                format!("local all all trust\n{lines}\n"),
            )?;
        }
        let mut cluster =
            Cluster::new(self.install, self.name, home, user, data_dir, self.settings);
        cluster.set_environment(self.environment);
        cluster.set_address(self.address);
        cluster.start()?;
        Ok(cluster)
    }

    /// Copies the files of TLS: the server reads no key that others may read too.
    fn copy_tls(&mut self, data_dir: &Path, user: ServerUser) -> Result<()> {
        let Some((certificate, key, client_ca)) = &self.tls else {
            return Ok(());
        };
        for (setting, name, from) in [
            ("ssl_cert_file", "server.crt", certificate),
            ("ssl_key_file", "server.key", key),
            ("ssl_ca_file", "clients.crt", client_ca),
        ] {
            let file = data_dir.join(name);
            fs::copy(from, &file).with_context(|| format!("cannot copy {}", from.display()))?;
            fs::set_permissions(&file, Permissions::from_mode(0o600))?;
            user.own(&file)?;
            self.settings.insert(setting.to_owned(), name.to_owned());
        }
        self.settings.insert("ssl".to_owned(), "on".to_owned());
        Ok(())
    }

    fn fill(&self, data_dir: &Path, user: ServerUser) -> Result<()> {
        fs::create_dir_all(data_dir)
            .with_context(|| format!("cannot create {}", data_dir.display()))?;
        // The server refuses a directory that others can look into, and pg_basebackup does not
        // change one that is there.
        fs::set_permissions(data_dir, Permissions::from_mode(0o700))?;
        user.own(data_dir)?;
        match &self.source {
            Source::Initdb => {
                let mut initdb = user.command(&self.install.program("initdb")?);
                initdb
                    .arg("-D")
                    .arg(data_dir)
                    .arg("-L")
                    .arg(self.install.share_dir());
                // Whoever can reach the socket directory is trusted.
                initdb.args([
                    "--username=postgres",
                    "--auth=trust",
                    "--encoding=UTF8",
                    "--no-locale",
                    "--no-sync",
                ]);
                complete(initdb, data_dir)
            }
            Source::StandbyOf { connection } => {
                let mut backup = user.command(&self.install.program("pg_basebackup")?);
                backup.arg("-D").arg(data_dir).arg("-d").arg(connection);
                backup.args([
                    "--write-recovery-conf",
                    "--wal-method=stream",
                    "--checkpoint=fast",
                    "--no-sync",
                ]);
                complete(backup, data_dir)
            }
        }
    }
}

/// Runs to the end, from a directory that the server's user can be in.
fn complete(mut command: Command, dir: &Path) -> Result<()> {
    let output = command.current_dir(dir).output()?;
    if !output.status.success() {
        bail!(
            "{} failed ({}):\n{}",
            command.get_program().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(())
}
