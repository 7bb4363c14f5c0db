//! PgBouncer in transaction mode, in front of a cluster.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Home, ServerUser};

use crate::server::{Program, Server};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// The number in the name of the socket. The socket is in its own directory, so every number is
/// free.
const PORT: u16 = 6432;

/// The number of connections of a pool. It is higher than the number that the tests of one database
/// use at a time.
const POOL_SIZE: u32 = 30;

/// A proxy that assigns a session of the server to a client for one transaction.
pub type PgBouncer = Server<Proxy>;

/// The program of [`PgBouncer`].
pub struct Proxy {
    user: ServerUser,
    upstream_dir: PathBuf,
    database: String,
    pool_size: u32,
}

impl PgBouncer {
    /// Starts a proxy for all databases of a cluster, with every role of the cluster. `database` is
    /// the database of [`PgBouncer::connection_string`].
    pub fn start(cluster: &Cluster, database: &str) -> Result<Self> {
        Self::start_with_pool(cluster, database, POOL_SIZE)
    }

    /// Starts a proxy with `pool_size` connections to each database for each role.
    pub fn start_with_pool(cluster: &Cluster, database: &str, pool_size: u32) -> Result<Self> {
        let home = Home::create(Proxy::NAME)?;
        // Like PostgreSQL, PgBouncer does not run as root.
        let user = ServerUser::choose(Path::new(PROGRAM), home.dir())?;
        user.own(home.socket_dir())?;
        let program = Proxy {
            user,
            upstream_dir: cluster.socket_dir().to_path_buf(),
            database: database.to_owned(),
            pool_size,
        };
        Self::start_in(home, program)
    }

    /// Returns whether a client can use its prepared statements in each of its transactions: with
    /// the default settings from version 1.24 on.
    pub fn keeps_prepared_statements(&self) -> Result<bool> {
        let output = Command::new(PROGRAM).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().and_then(|line| {
            let (major, rest) = line.strip_prefix("PgBouncer ")?.split_once('.')?;
            let minor = rest.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        let version: (u32, u32) = version.with_context(|| format!("no version: {text}"))?;
        Ok(version >= (1, 24))
    }

    /// Returns the connection string of superuser `postgres`, for libpq and for `tokio-postgres`.
    #[must_use]
    pub fn connection_string(&self) -> String {
        self.connection_string_to(&self.program().database)
    }

    /// Returns the connection string for another database of the cluster.
    #[must_use]
    pub fn connection_string_to(&self, database: &str) -> String {
        let socket_dir = self.home().socket_dir().display();
        format!("host={socket_dir} port={PORT} user=postgres dbname={database}")
    }

    /// Returns the connection string of the console, in which the commands `SHOW …` work. The
    /// console accepts only simple queries.
    #[must_use]
    pub fn console(&self) -> String {
        self.connection_string_to("pgbouncer")
    }
}

impl Program for Proxy {
    const NAME: &'static str = "pgbouncer";

    fn command(&self, home: &Home) -> Result<Command> {
        let (config, users) = (
            home.dir().join("pgbouncer.ini"),
            home.dir().join("users.txt"),
        );
        // If `auth_file` does not name a role, PgBouncer looks the role up in a connection of
        // `auth_user`. Idle connections are closed soon, so that connections are free for the next
        // database: the server accepts only a hundred.
        let text = format!(
            "[databases]\n\
             * = host={upstream} port=5432\n\
             [pgbouncer]\n\
             listen_addr =\n\
             listen_port = {PORT}\n\
             unix_socket_dir = {socket_dir}\n\
             auth_type = trust\n\
             auth_file = {users}\n\
             auth_user = postgres\n\
             stats_users = postgres\n\
             pool_mode = transaction\n\
             max_client_conn = 500\n\
             default_pool_size = {pool_size}\n\
             server_idle_timeout = 5\n\
             ignore_startup_parameters = extra_float_digits\n",
            upstream = self.upstream_dir.display(),
            socket_dir = home.socket_dir().display(),
            users = users.display(),
            pool_size = self.pool_size,
        );
        fs::write(&users, "\"postgres\" \"\"\n")?;
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = self.user.command(Path::new(PROGRAM));
        command.arg(config);
        Ok(command)
    }

    fn is_ready(&self, home: &Home) -> bool {
        UnixStream::connect(home.socket_dir().join(format!(".s.PGSQL.{PORT}"))).is_ok()
    }
}
