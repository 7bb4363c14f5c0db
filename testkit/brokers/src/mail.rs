//! A mail server that keeps the mails that it receives.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};
use idem_cluster::Home;

use crate::port::Port;
use crate::server::{Program, Server};

/// An SMTP server that accepts every mail and puts it into a Maildir. A mail is written before the
/// server accepts it.
pub type MailSink = Server<Aiosmtpd>;

/// The program of [`MailSink`].
pub struct Aiosmtpd {
    port: Port,
}

impl MailSink {
    /// Starts a new server with an empty mailbox.
    pub fn start() -> Result<Self> {
        let port = Port::claim()?;
        Self::start_in(Home::create(Aiosmtpd::NAME)?, Aiosmtpd { port })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.program().port.number()).into()
    }

    /// Returns the mails that the server has accepted, with their headers.
    pub fn mails(&self) -> Result<Vec<String>> {
        let mut mails = Vec::new();
        for entry in fs::read_dir(self.home().dir().join("mails/new"))? {
            mails.push(fs::read_to_string(entry?.path())?);
        }
        Ok(mails)
    }
}

impl Program for Aiosmtpd {
    const NAME: &'static str = "mail";

    fn command(&self, home: &Home) -> Result<Command> {
        let mails = home.dir().join("mails");
        // The program makes the mailbox only when the first mail arrives, but `mails` also reads an
        // empty mailbox.
        for part in ["tmp", "new", "cur"] {
            fs::create_dir_all(mails.join(part))
                .with_context(|| format!("cannot create {}", mails.display()))?;
        }
        let mut command = Command::new("/usr/bin/aiosmtpd");
        command.args([
            "--nosetuid",
            "--class",
            "aiosmtpd.handlers.Mailbox",
            "--listen",
        ]);
        command
            .arg(format!("127.0.0.1:{}", self.port.number()))
            .arg(mails);
        Ok(command)
    }

    /// The server is ready when it sends its greeting.
    fn is_ready(&self, _home: &Home) -> bool {
        self.port
            .greeting()
            .is_ok_and(|line| line.starts_with("220 "))
    }
}
