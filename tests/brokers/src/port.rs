//! Ports that nobody else takes, also while their server is down.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result};

/// Below those that the kernel hands out to clients: one of these would sit on the port when its
/// server comes back.
const FIRST: u16 = 12_000;
const LAST: u16 = 31_999;

/// A loopback port that is ours as long as this lives.
pub struct Port {
    number: u16,
    /// A name that only one process of the machine can hold, and that goes with it.
    _claim: UnixListener,
}

impl Port {
    /// Finds one that is free.
    ///
    /// # Errors
    /// When there is none.
    pub fn claim() -> Result<Self> {
        let count = LAST - FIRST + 1;
        // Processes start at different places, so that they seldom try the same.
        let start = u16::try_from(std::process::id() * 97 % u32::from(count))?;
        (0..count)
            .map(|step| FIRST + (start + step) % count)
            .find_map(Self::try_claim)
            .context("no port is free")
    }

    fn try_claim(number: u16) -> Option<Self> {
        let name = SocketAddr::from_abstract_name(format!("idem-port-{number}")).ok()?;
        let claim = UnixListener::bind_addr(&name).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self {
            number,
            _claim: claim,
        })
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}
