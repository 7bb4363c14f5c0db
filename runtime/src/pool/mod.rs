//! Pools of connections to PostgreSQL, over TLS unless the connection string disables it.

mod connect;
mod options;
mod pooler;
mod schema;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{
    Config,
    config::{Host, SslMode as Tls, SslNegotiation},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::{
    connect::{CONNECT_TIMEOUT, Hosts},
    options::{Options, invalid},
    schema::{search_path, sets_path},
};
use crate::{Error, transport::tls::Files};

/// The longest time in which the network must acknowledge sent data. Without this limit, the kernel
/// would detect only after a quarter of an hour or more that the other machine is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// The time between two keepalive probes to a server that does not respond. The kernel closes the
/// connection only after several lost probes. With its own interval of 75 s this would take many
/// minutes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The settings of a connection to PostgreSQL: a connection string, and the size of the pool.
///
/// Over TCP every connection uses TLS, and verifies the server's certificate and its host name.
/// Only `sslmode=disable` allows plaintext. A connection over a Unix socket uses no TLS.
///
/// ```no_run
/// # fn main() -> Result<(), idem_runtime::Error> {
/// let connection = "postgres://app@db.example.com/shop?sslrootcert=/etc/shop/ca.pem";
/// let pool = idem_runtime::PoolConfig::parse(connection)?
///     .max_size(8)
///     .build()?;
/// # let _ = pool;
/// # Ok(()) }
/// ```
///
/// These options are read by this type:
///
/// - `sslmode`:
///   - `verify-full`, the default: the certificate is valid, a trusted authority signed it, and it
///     is for this host.
///   - `verify-ca`: the certificate is valid and a trusted authority signed it, but it can be for
///     any host. Needs a file of authorities.
///   - `disable`: plaintext.
///   - `require` is read as `verify-full`; `allow` and `prefer` are errors.
/// - `sslrootcert`: a PEM file of the authorities to trust. The default, `system`, trusts the
///   authorities of the system.
/// - `sslcert`, `sslkey`: PEM files of the client's certificate and of its key.
///
/// All other options are those of [`tokio_postgres::Config`]. `connect_timeout` (10 s by default)
/// applies to each address of each host, until the login is done. With `hostaddr`, the certificate
/// must be for `host`, or for the address if there is no `host`. Environment variables such as
/// `PGSSLROOTCERT` and files such as `~/.postgresql/root.crt` are not read.
#[derive(Clone)]
pub struct PoolConfig {
    options: Options,
    mode: Mode,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    max_size: usize,
}

/// How a server that is reached over TCP is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Disable,
    VerifyCa,
    VerifyFull,
}

impl PoolConfig {
    /// Parses a URL (`postgres://`) or key=value pairs.
    ///
    /// Fails with [`Error::Invalid`] if an option is unknown, or if options contradict each other.
    /// The error contains no value.
    pub fn parse(connection: &str) -> Result<Self, Error> {
        let options = Options::parse(connection)?;
        let mode = match options.get("sslmode") {
            None | Some("verify-full" | "require") => Mode::VerifyFull,
            Some("verify-ca") => Mode::VerifyCa,
            Some("disable") => Mode::Disable,
            Some("allow" | "prefer") => {
                return Err(invalid(
                    "sslmode allow and prefer fall back to plaintext; \
                     use verify-full, verify-ca or disable",
                ));
            }
            Some(_) => {
                return Err(invalid(
                    "sslmode is none of verify-full, verify-ca and disable",
                ));
            }
        };
        let config = Self {
            mode,
            ca: file(&options, "sslrootcert")?.filter(|ca| ca.as_os_str() != "system"),
            certificate: file(&options, "sslcert")?,
            key: file(&options, "sslkey")?,
            max_size: 10,
            options,
        };
        config.check()?;
        config.hosts()?;
        Ok(config)
    }

    /// Sets the largest number of connections. The default is 10.
    #[must_use]
    pub fn max_size(mut self, connections: usize) -> Self {
        self.max_size = connections;
        self
    }

    /// Sets the name that `pg_stat_activity` shows, unless the connection string sets a name.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        if self.options.get("application_name").is_none() {
            self.options.set("application_name", name);
        }
        self
    }

    /// Trusts the authorities of this PEM file.
    ///
    /// Fails with [`Error::Invalid`] if the connection string names authorities too, or disables
    /// TLS.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Result<Self, Error> {
        if self.options.get("sslrootcert").is_some() {
            return Err(invalid(
                "it has sslrootcert, and the settings name another file of authorities",
            ));
        }
        self.ca = Some(file.into());
        self.check()?;
        Ok(self)
    }

    /// Sets the schema that was named in `CREATE EXTENSION idem SCHEMA ...`. This schema then comes
    /// before `"$user"` and `public` in the `search_path`.
    ///
    /// By default the `search_path` of the role is used, and it must contain the schema of the
    /// functions.
    ///
    /// The setting is sent as a startup parameter. PgBouncer supports it since PgBouncer 1.26 if
    /// PostgreSQL is version 18 or later. Otherwise every connection fails with
    /// [`ErrorKind::ConnectionLost`](idem_client::ErrorKind::ConnectionLost), which consumers and
    /// relays retry. Set the path of the role instead: `ALTER ROLE app SET search_path = api,
    /// public`. Do not add `options` or `search_path` to `ignore_startup_parameters` of PgBouncer.
    ///
    /// Fails with [`Error::Invalid`] if the name is not valid in PostgreSQL, or if `options` of the
    /// connection string sets the path.
    pub fn schema(mut self, name: &str) -> Result<Self, Error> {
        let given = self.options.get("options").unwrap_or_default();
        if sets_path(given) {
            return Err(invalid(
                "options sets search_path, and the settings name a schema",
            ));
        }
        let options = format!("{given} {}", search_path(name)?);
        self.options.set("options", options.trim_start());
        Ok(self)
    }

    /// Builds a pool without opening a connection.
    ///
    /// Fails with [`Error::Invalid`] if a file cannot be used, or if `sslmode=verify-ca` has no
    /// file of authorities. The files are read only now, and not again for a later connection.
    pub fn build(&self) -> Result<Pool, Error> {
        // The authorities of the system sign certificates for any host, so the name of the host
        // must be verified too.
        if self.mode == Mode::VerifyCa && self.ca.is_none() {
            return Err(invalid(
                "sslmode verify-ca needs sslrootcert with a file of your own authority; \
                 use verify-full for those of the system",
            ));
        }
        let hosts = self.hosts()?;
        let tls = hosts
            .iter()
            .any(|host| host.get_ssl_mode() != Tls::Disable)
            .then(|| self.tls().map(Arc::new))
            .transpose()?;
        let first = hosts.first().cloned().unwrap_or_default();
        let manager = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_connect(first, Hosts::new(hosts, tls), manager);
        Pool::builder(manager)
            .max_size(self.max_size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            // No limit here, because `connect_timeout` limits each address of each host.
            .create_timeout(None)
            .build()
            .map_err(|error| Error::Invalid(format!("the pool cannot be built: {error}")))
    }

    /// Checks that the settings do not contradict each other.
    fn check(&self) -> Result<(), Error> {
        let has_files = self.ca.is_some() || self.certificate.is_some() || self.key.is_some();
        if self.mode == Mode::Disable && (has_files || self.options.get("sslrootcert").is_some()) {
            return Err(invalid(
                "sslmode disable contradicts the certificates that are set",
            ));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(invalid(
                "sslcert and sslkey must be set together, but only one of them is set",
            ));
        }
        Ok(())
    }

    fn tls(&self) -> Result<MakeRustlsConnect, Error> {
        let files = Files {
            ca: self.ca.as_deref(),
            certificate: self.certificate.as_deref(),
            key: self.key.as_deref(),
        };
        let mut config = match self.mode {
            Mode::VerifyCa => files.verify_ca()?,
            Mode::VerifyFull | Mode::Disable => files.verify_full()?,
        };
        // A direct TLS handshake must name the protocol (ALPN). A handshake that follows an
        // SSLRequest of PostgreSQL does not.
        if self.options.get("sslnegotiation") == Some("direct") {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(MakeRustlsConnect::new(config))
    }

    /// Returns one configuration for each host, with its TLS mode and its `connect_timeout`.
    /// [`Hosts`] applies this limit until the login is done, because `tokio-postgres` applies it
    /// only until the host accepts the connection.
    fn hosts(&self) -> Result<Vec<Config>, Error> {
        let names = self.options.list("host");
        let addresses = self.options.list("hostaddr");
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            return Err(invalid(
                "host and hostaddr have different numbers of elements",
            ));
        }
        let count = names.len().max(addresses.len());
        if count == 0 {
            return Err(invalid("it has no host"));
        }
        let ports = self.options.list("port");
        if ports.len() > 1 && ports.len() != count {
            return Err(invalid("host and port have different numbers of elements"));
        }
        let host = |number: usize| {
            let name = names.get(number).copied().unwrap_or_default();
            let address = addresses.get(number).copied().unwrap_or_default();
            let port = ports.get(number).or(ports.first()).copied();
            self.config(name, address, port.unwrap_or_default())
        };
        (0..count).map(host).collect()
    }

    /// Returns the configuration of one host. `name` is the name to verify, or the directory of a
    /// socket. Each text may be empty, but not both `name` and `address`.
    fn config(&self, name: &str, address: &str, port: &str) -> Result<Config, Error> {
        let name = if name.is_empty() { address } else { name };
        if name.is_empty() {
            return Err(invalid("a host has neither a name nor an address"));
        }
        // With both, the connection would use TCP because of `hostaddr`, and no TLS because of the
        // socket.
        if name.starts_with('/') && !address.is_empty() {
            return Err(invalid(
                "a host is the directory of a socket and has hostaddr too",
            ));
        }
        let mut options = self.options.clone();
        options.set("host", name);
        options.set("port", if port.is_empty() { "5432" } else { port });
        if address.is_empty() {
            options.remove("hostaddr");
        } else {
            options.set("hostaddr", address);
        }
        let mut config: Config = options
            .passed_on()
            .parse()
            .map_err(|error| reason(&error))?;
        let is_socket = config
            .get_hosts()
            .iter()
            .any(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(match self.mode {
            _ if is_socket => Tls::Disable,
            Mode::Disable => Tls::Disable,
            Mode::VerifyCa | Mode::VerifyFull => Tls::Require,
        });
        if is_socket {
            config.ssl_negotiation(SslNegotiation::Postgres);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_interval(KEEPALIVE_INTERVAL);
        }
        if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
            config.keepalives_idle(SILENCE);
        }
        Ok(config)
    }
}

/// Returns the file of an option. An empty value is an error, because it would mean the system's
/// authorities or no certificate.
fn file(options: &Options, name: &str) -> Result<Option<PathBuf>, Error> {
    match options.get(name) {
        Some("") => Err(invalid(&format!("{name} is empty"))),
        value => Ok(value.map(PathBuf::from)),
    }
}

/// Returns only the cause of an error. The cause names the option and does not contain its value.
fn reason(error: &tokio_postgres::Error) -> Error {
    match std::error::Error::source(error) {
        Some(source) => invalid(&source.to_string()),
        None => invalid("an option has a wrong value"),
    }
}

/// Omits the connection string, which can contain a password.
impl fmt::Debug for PoolConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolConfig")
            .field("mode", &self.mode)
            .field("ca", &self.ca)
            .field("certificate", &self.certificate)
            .field("max_size", &self.max_size)
            .finish_non_exhaustive()
    }
}
