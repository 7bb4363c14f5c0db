//! RabbitMQ, on its own Erlang node.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use idem_cluster::{Home, Process, wait_for};
use nix::sys::signal::Signal;

use crate::authority::Certified;
use crate::port::Port;
use crate::server::{Program, Server};

/// A RabbitMQ server: user `guest`, password `guest`, virtual host `/`, no plugins.
pub type RabbitMq = Server<RabbitMqServer>;

/// The program of [`RabbitMq`].
pub struct RabbitMqServer {
    settings: String,
    port: Port,
    /// The port for TLS.
    tls: Option<Port>,
    /// The port of the node for other nodes. There are no other nodes, but the node requires the
    /// port.
    distribution: Port,
    epmd: Epmd,
}

/// Erlang's name server. Without a running name server, a node would start one as a daemon for the
/// whole machine, and the daemon would not end. So each server starts its own name server before
/// the node.
struct Epmd {
    port: Port,
    _process: Process,
}

impl RabbitMq {
    /// Starts a new server without queues. This takes some seconds.
    pub fn start() -> Result<Self> {
        Self::start_as("", None)
    }

    /// Starts a new server with further lines of configuration.
    pub fn start_with(settings: &str) -> Result<Self> {
        Self::start_as(settings, None)
    }

    /// Starts a new server that also listens for TLS, with this certificate. A client certificate
    /// must be signed by `clients`. Without `clients` the server requests no client certificate.
    /// The common name of a client certificate is its user if the client authenticates with it
    /// (`EXTERNAL`).
    pub fn start_with_tls(server: &Certified, clients: Option<&Path>) -> Result<Self> {
        let port = Port::claim()?;
        let mut settings = format!(
            "listeners.ssl.1 = 127.0.0.1:{}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n\
             ssl_cert_login_from = common_name\n\
             auth_mechanisms.1 = PLAIN\n\
             auth_mechanisms.2 = EXTERNAL\n",
            port.number(),
            server.certificate.display(),
            server.key.display(),
        );
        if let Some(ca) = clients {
            settings += &format!(
                "ssl_options.cacertfile = {}\n\
                 ssl_options.verify = verify_peer\n\
                 ssl_options.fail_if_no_peer_cert = true\n",
                ca.display(),
            );
        }
        Self::start_as(&settings, Some(port))
    }

    fn start_as(settings: &str, tls: Option<Port>) -> Result<Self> {
        let home = Home::create(RabbitMqServer::NAME)?;
        let program = RabbitMqServer {
            settings: settings.to_owned(),
            port: Port::claim()?,
            tls,
            distribution: Port::claim()?,
            epmd: Epmd::start(&home)?,
        };
        Self::start_in(home, program)
    }

    /// Returns the major and the minor version of the installed server.
    pub fn version() -> Result<(u32, u32)> {
        let installed = Path::new("/usr/lib/rabbitmq/lib");
        fs::read_dir(installed)
            .with_context(|| format!("cannot read {}", installed.display()))?
            .filter_map(|entry| version_of(entry.ok()?.file_name().to_str()?))
            .max()
            .with_context(|| format!("no RabbitMQ in {}", installed.display()))
    }

    /// Returns the port on which the server listens for TLS, on 127.0.0.1.
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        self.program().tls.as_ref().map(Port::number)
    }

    /// Returns the port on which the server listens, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.program().port.number()
    }

    /// Returns the URL of the server: `amqp://guest:guest@127.0.0.1:PORT/%2f`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("guest")
    }

    /// Returns the URL for another user. The password of the user must be the same as the user
    /// name.
    #[must_use]
    pub fn url_of(&self, user: &str) -> String {
        format!(
            "amqp://{user}:{user}@127.0.0.1:{}/%2f",
            self.program().port.number()
        )
    }

    /// Runs `rabbitmqctl` with these arguments, and returns its output. This takes some seconds.
    ///
    /// # Errors
    /// Fails when the command fails. The message contains its output.
    pub fn control(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.program().program("rabbitmqctl", self.home());
        // Erlang writes UTF-8 only with a UTF-8 locale, and prints a warning with any other locale.
        command
            .env("LC_ALL", "C.UTF-8")
            .arg("--quiet")
            .args(arguments);
        let output = command.output().context("cannot run rabbitmqctl")?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(
            output.status.success(),
            "rabbitmqctl {arguments:?} failed: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }
}

/// Returns the version in the name of a folder such as `rabbitmq_server-3.10.8`.
fn version_of(folder: &str) -> Option<(u32, u32)> {
    let mut numbers = folder.strip_prefix("rabbitmq_server-")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl RabbitMqServer {
    /// Returns a command for one of RabbitMQ's programs, for this server.
    fn program(&self, name: &str, home: &Home) -> Command {
        // The program in the search path is not used, because it switches to the user of the
        // machine's own server.
        let mut command = Command::new(Path::new("/usr/lib/rabbitmq/bin").join(name));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("RABBITMQ_") || name.starts_with("ERL_") {
                command.env_remove(name.as_ref());
            }
        }
        command
            .env("HOME", home.dir())
            // The settings of the machine's own server do not apply.
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env(
                "RABBITMQ_NODENAME",
                format!("idem-{}@localhost", self.port.number()),
            )
            .env("ERL_EPMD_PORT", self.epmd.port.number().to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1");
        command
    }
}

impl Program for RabbitMqServer {
    const NAME: &'static str = "rabbitmq";

    fn command(&self, home: &Home) -> Result<Command> {
        let dir = home.dir();
        let (config, plugins, cookie) = (
            dir.join("rabbitmq.conf"),
            dir.join("plugins"),
            dir.join(".erlang.cookie"),
        );
        let text = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\n\
             log.console = true\n\
             log.file = false\n\
             vm_memory_high_watermark.absolute = 512MB\n\
             disk_free_limit.absolute = 50MB\n\
             {settings}\n",
            port = self.port.number(),
            settings = self.settings,
        );
        let enabled = match self.tls {
            Some(_) => "[rabbitmq_auth_mechanism_ssl].\n",
            None => "[].\n",
        };
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        fs::write(&plugins, enabled)?;
        // The cookie is the secret that all Erlang nodes of this server share.
        if !cookie.exists() {
            let mut random = [0; 16];
            File::open("/dev/urandom")?.read_exact(&mut random)?;
            fs::write(&cookie, format!("{:032X}", u128::from_ne_bytes(random)))?;
            fs::set_permissions(&cookie, Permissions::from_mode(0o400))?;
        }

        let mut command = self.program("rabbitmq-server", home);
        command
            // With this variable the script replaces itself by the server instead of waiting for
            // the server, so that signals reach the server.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
            .env("RABBITMQ_LOG_BASE", dir.join("logs"))
            .env("RABBITMQ_CONFIG_FILE", config)
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
            .env("RABBITMQ_DIST_PORT", self.distribution.number().to_string())
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
            )
            .env("ERL_CRASH_DUMP", dir.join("erl_crash.dump"));
        Ok(command)
    }

    /// The server is ready when it replies to the header of AMQP 0-9-1 with a frame of the type
    /// *method*, and when it has booted. The second condition is needed because a stop before the
    /// end of the boot hangs.
    fn is_ready(&self, home: &Home) -> bool {
        self.port.replies(b"AMQP\x00\x00\x09\x01", &[1])
            && home.log().is_ok_and(|log| has_booted(&log))
    }
}

/// Returns whether the last start in this log is complete.
fn has_booted(log: &str) -> bool {
    let last = log.rsplit("Starting RabbitMQ").next();
    last.is_some_and(|start| start.contains("Server startup complete"))
}

impl Epmd {
    fn start(home: &Home) -> Result<Self> {
        let port = Port::claim()?;
        let mut command = Command::new("/usr/bin/epmd");
        command.args(["-address", "127.0.0.1", "-port", &port.number().to_string()]);
        let process = Process::spawn(command, home.open_log()?, &[Signal::SIGKILL])?;
        wait_for("epmd listens", Duration::from_secs(60), || {
            match process.exit_status() {
                Some(status) => bail!("epmd ended ({status}):\n{}", home.log_tail()),
                None => Ok(port.connect().is_ok()),
            }
        })?;
        Ok(Self {
            port,
            _process: process,
        })
    }
}
