//! Reserves ports. No other process takes a reserved port, even while the server of the port is
//! stopped.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use anyhow::{Context, Result};
use idem_cluster::probe;

/// The first port. The kernel assigns only higher ports to clients. Otherwise a client could get
/// the port of a stopped server, and the server could not start again.
const FIRST: u16 = 12_000;
/// The last port.
const LAST: u16 = 31_999;

/// A loopback port that is reserved as long as this value lives.
pub struct Port {
    number: u16,
    /// A socket whose name only one process of the machine can bind. The kernel releases the name
    /// when the process ends.
    _claim: UnixListener,
}

impl Port {
    /// Reserves a free port.
    pub fn claim() -> Result<Self> {
        let count = LAST - FIRST + 1;
        // Processes start at different ports, so that they rarely try the same port.
        let start = u16::try_from(std::process::id() * 97 % u32::from(count))?;
        (0..count)
            .map(|step| FIRST + (start + step) % count)
            .find_map(Self::try_claim)
            .context("no port is free")
    }

    fn try_claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("idem-port-{number}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        probe((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self {
            number,
            _claim: claim,
        })
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    /// Connects to the server of the port.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.number))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(stream)
    }

    /// Returns the line that the server sends to a new client.
    pub fn greeting(&self) -> io::Result<String> {
        let mut line = String::new();
        BufReader::new(self.connect()?).read_line(&mut line)?;
        Ok(line)
    }

    /// Returns whether the server replies to `request` with bytes that begin with `reply`.
    pub fn replies<const N: usize>(&self, request: &[u8], reply: &[u8; N]) -> bool {
        let replied = || {
            let mut stream = self.connect()?;
            stream.write_all(request)?;
            let mut bytes = [0; N];
            stream.read_exact(&mut bytes)?;
            io::Result::Ok(bytes == *reply)
        };
        replied().is_ok_and(|is_expected| is_expected)
    }
}
