//! Loopback addresses that let several servers listen on the same port.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::probe;

/// Returns an address of 127.0.0.0/8 on which this port is free. Different processes begin the
/// search at different addresses.
pub fn free(port: u16) -> Result<Ipv4Addr> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let first = std::process::id().wrapping_mul(0x9E37_79B1);
    (0..1000)
        .map(|_| {
            let number = first.wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed));
            let [_, b, c, d] = number.to_be_bytes();
            // 127.0.0.1 is left to the servers of the machine.
            Ipv4Addr::new(127, b.max(1), c, d)
        })
        .find(|address| probe((*address, port)).is_ok())
        .with_context(|| format!("no loopback address was found on which port {port} is free"))
}
