//! Checks whether an address is free.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// Fails if a server listens at the address.
///
/// The socket does not listen, so it does not prevent a server from listening at this address. A
/// listening socket would, even after this process has closed it: a child that another thread is
/// starting has a copy of the socket until it runs its program.
pub fn probe(address: impl Into<SocketAddr>) -> io::Result<Socket> {
    let address = address.into();
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::probe;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn probe_finds_a_server_and_does_not_prevent_one() {
        let probed = probe((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = probed.local_addr().unwrap().as_socket().unwrap();
        let server = TcpListener::bind(address).unwrap();
        drop(probed);
        assert!(probe(address).is_err());
        drop(server);
        probe(address).unwrap();
    }
}
