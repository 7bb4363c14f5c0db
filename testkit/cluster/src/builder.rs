//! Creates a cluster in an empty directory or as a standby of another cluster, and starts it.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
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

/// The settings of a new cluster, unless the caller changes them. Most of them differ from the
/// default of PostgreSQL for the reason beside them. None of them changes how a statement is
/// planned or executed, so that tests and benchmarks show what users get.
const DEFAULTS: [(&str, &str); 9] = [
    // Tests kill processes and not machines, so written data is kept without fsync. Benchmarks set
    // fsync to on.
    ("fsync", "off"),
    // Tests and benchmarks fit into memory, and several servers share a machine.
    ("shared_buffers", "256MB"),
    // Prepared transactions are a feature under test.
    ("max_prepared_transactions", "20"),
    // The WAL that other tests write must not cause a checkpoint in the middle of a test.
    ("max_wal_size", "4GB"),
    // Sockets only, because servers of several runs share a machine.
    ("listen_addresses", ""),
    ("log_line_prefix", "%m [%p] %q%a "),
    // Tests read the log, so it has no lines about checkpoints, and its messages are in English.
    ("log_checkpoints", "off"),
    ("lc_messages", "C"),
    ("timezone", "UTC"),
];

/// Every user that can reach the socket directory is trusted.
const INITDB_OPTIONS: [&str; 4] = [
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    "--no-locale",
];

/// The source of the data of a new cluster.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A new data directory.
    Initdb,
    /// A base backup of a running cluster. The new server then follows this cluster.
    StandbyOf { connection: String },
}

/// The description of a cluster. [`Builder::start`] starts the cluster.
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

    /// Returns the builder of a standby. The limits of a standby must be at least those of its
    /// primary, so the standby begins with the settings and the environment of the primary.
    pub(crate) fn standby_of(primary: &Cluster) -> Self {
        Self {
            name: format!("{}-standby", primary.name()),
            source: Source::StandbyOf {
                connection: primary.connection_string("postgres"),
            },
            settings: primary.settings().clone(),
            environment: primary.environment.clone(),
            ..Self::new(primary.install())
        }
        .preload(primary.settings().contains_key("shared_preload_libraries"))
    }

    /// Sets the name that the directory of the cluster begins with. The default is `cluster`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets a line of `postgresql.conf`. The value is given without quotes.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets a variable of the server's environment, for every start.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets whether the server loads `idem` at its start, which the worker, the counters and the
    /// wake-up need. The default is true.
    #[must_use]
    pub fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// Sets a data directory of the caller. It is initialised if it is empty, and never removed.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Listens on a loopback address that no other server has, on PostgreSQL's default port.
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

    /// Sets the lines of `pg_hba.conf` for TCP. Without them every connection is trusted.
    #[must_use]
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba = Some(lines.to_owned());
        self
    }

    /// Makes the data directory, starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// Fails when a program fails, or when the server does not accept connections within a minute.
    /// The message ends with the last lines of its log.
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
        let mut cluster = Cluster {
            postmaster: None,
            install: self.install,
            name: self.name,
            user,
            data_dir,
            settings: self.settings,
            environment: self.environment,
            address: self.address,
            home,
        };
        cluster.start()?;
        Ok(cluster)
    }

    /// Copies the files of TLS, because the server does not use a key that other users can read.
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
        // The server does not use a directory that other users can read, and pg_basebackup does not
        // change the mode of an existing directory.
        fs::set_permissions(data_dir, Permissions::from_mode(0o700))?;
        user.own(data_dir)?;
        match &self.source {
            Source::Initdb => {
                let mut copy = user.command(Path::new("cp"));
                copy.arg("-a")
                    .arg(self.initialized(user)?.join("."))
                    .arg(data_dir);
                complete(copy, data_dir)
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

    /// Returns a directory to copy, on which initdb has run. Each user, version of PostgreSQL and
    /// list of options has one. A copy takes a tenth of the time of initdb.
    fn initialized(&self, user: ServerUser) -> Result<PathBuf> {
        let mut version = user.command(&self.install.program("initdb")?);
        let version = version.arg("--version").output()?.stdout;
        let version = String::from_utf8_lossy(&version).replace(char::is_whitespace, "_");
        let parent = self.install.root().join("initdb");
        fs::create_dir_all(&parent)?;
        let lock = File::create(parent.join("lock"))?;
        lock.lock()?;
        let dir = parent.join(format!(
            "{version}{}{}",
            user.uid(),
            INITDB_OPTIONS.concat()
        ));
        if dir.is_dir() {
            return Ok(dir);
        }
        let unfinished = parent.join("unfinished");
        if unfinished.is_dir() {
            fs::remove_dir_all(&unfinished)?;
        }
        fs::create_dir(&unfinished)?;
        user.own(&unfinished)?;
        let mut initdb = user.command(&self.install.program("initdb")?);
        initdb.arg("-D").arg(&unfinished);
        initdb.arg("-L").arg(self.install.share_dir());
        initdb.args(INITDB_OPTIONS);
        complete(initdb, &unfinished)?;
        fs::rename(&unfinished, &dir)?;
        Ok(dir)
    }
}

/// Runs a command to its end, in a directory that the server's user can enter.
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
