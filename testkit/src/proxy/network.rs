//! A network that can be interrupted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::select;
use tokio::sync::watch;

use super::listener::{Listener, Target};

/// The kinds of network failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every connection is reset on both sides. New connections work.
    Reset,
    /// No data passes until the network is healed. Then the delayed data passes.
    Stall,
    /// The server side of every connection is closed, and the client receives nothing until the
    /// network is healed. New connections receive nothing either.
    HalfOpen,
}

/// The state of the network that all connections observe. A change of the epoch resets all existing
/// connections.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    is_stalled: bool,
    is_half_open: bool,
    epoch: u64,
}

/// A proxy that can be switched to another server and can interrupt its connections. It is stopped
/// when this value is dropped.
pub struct Network {
    target: Arc<Mutex<Target>>,
    state: watch::Sender<State>,
    hits: Arc<AtomicU64>,
    listener: Listener,
}

impl Network {
    /// Starts a proxy on a free port of 127.0.0.1.
    pub async fn start(target: Target) -> io::Result<Self> {
        let target = Arc::new(Mutex::new(target));
        let (state, seen) = watch::channel(State::default());
        let hits = Arc::default();
        let wire = Wire {
            target: Arc::clone(&target),
            state: seen,
            hits: Arc::clone(&hits),
        };
        let listener = Listener::start(move |client| wire.clone().carry(client)).await?;
        Ok(Self {
            target,
            state,
            hits,
            listener,
        })
    }

    /// Returns the port on which the proxy listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listener.address().port()
    }

    /// Forwards new connections to this server from now on, and resets the existing connections.
    pub fn switch(&self, target: Target) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
        self.cut(Fault::Reset);
    }

    /// Injects a network failure.
    pub fn cut(&self, fault: Fault) {
        self.state.send_modify(|state| match fault {
            Fault::Reset => state.epoch += 1,
            Fault::Stall => state.is_stalled = true,
            Fault::HalfOpen => state.is_half_open = true,
        });
    }

    /// Returns the number of times that a failure has affected a connection so far: it was reset,
    /// its data was held back, or it was left half open.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Ends a stall or half-open failure. Connections that were half open are reset.
    pub fn heal(&self) {
        self.state.send_modify(|state| {
            *state = State {
                epoch: state.epoch + u64::from(state.is_half_open),
                ..State::default()
            };
        });
    }
}

/// The state that a connection shares with its proxy.
#[derive(Clone)]
struct Wire {
    target: Arc<Mutex<Target>>,
    state: watch::Receiver<State>,
    hits: Arc<AtomicU64>,
}

impl Wire {
    /// Forwards one connection until it ends. When the proxy ends the connection, the client sees a
    /// reset.
    async fn carry(self, mut client: TcpStream) -> io::Result<()> {
        let epoch = self.state.borrow().epoch;
        let mut resets = self.state.clone();
        let is_reset = select! {
            () = self.pass_until_healed(&mut client) => false,
            _ = resets.wait_for(|state| state.epoch != epoch) => true,
        };
        if is_reset {
            self.note_hit();
            client.set_zero_linger()?;
        }
        Ok(())
    }

    async fn pass_until_healed(&self, client: &mut TcpStream) {
        let mut state = self.state.clone();
        // While the network is half open, a new connection receives nothing.
        if state.wait_for(|state| !state.is_half_open).await.is_err() {
            return;
        }
        let is_cut = select! {
            _ = self.pass_both(client) => false,
            cut = state.wait_for(|state| state.is_half_open) => cut.is_ok(),
        };
        // The end of `pass_both` has closed the server side. The client side stays open until the
        // network is healed.
        if is_cut {
            self.note_hit();
            let _ = state.wait_for(|state| !state.is_half_open).await;
        }
    }

    /// Forwards bytes in both directions until one direction ends.
    async fn pass_both(&self, client: &mut TcpStream) -> io::Result<()> {
        let target = self
            .target
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (from_server, to_server) = split(target.connect().await?);
        let (from_client, to_client) = client.split();
        select! {
            ended = self.pass(from_client, to_server) => ended,
            ended = self.pass(from_server, to_client) => ended,
        }
    }

    /// Forwards bytes in one direction, and holds them back while the network is stalled.
    async fn pass(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut state = self.state.clone();
        let mut bytes = vec![0; 1 << 14];
        loop {
            let read = from.read(&mut bytes).await?;
            if read == 0 {
                return to.shutdown().await;
            }
            if state.borrow().is_stalled {
                self.note_hit();
            }
            if state.wait_for(|state| !state.is_stalled).await.is_err() {
                return Ok(());
            }
            to.write_all(&bytes[..read]).await?;
        }
    }

    fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(200);

    /// Starts a server that echoes all bytes, and a connection to it through a proxy.
    async fn echo() -> io::Result<(Listener, Network, TcpStream)> {
        let server = Listener::start(|mut client| async move {
            let (mut from, mut to) = client.split();
            tokio::io::copy(&mut from, &mut to).await.map(drop)
        })
        .await?;
        let network = Network::start(Target::Tcp(server.address())).await?;
        let mut client = connect(&network).await?;
        assert_eq!(round_trip(&mut client).await?, *b"hello");
        Ok((server, network, client))
    }

    async fn connect(network: &Network) -> io::Result<TcpStream> {
        TcpStream::connect(network.listener.address()).await
    }

    async fn round_trip(client: &mut TcpStream) -> io::Result<[u8; 5]> {
        client.write_all(b"hello").await?;
        let mut reply = [0; 5];
        client.read_exact(&mut reply).await?;
        Ok(reply)
    }

    /// A reset ends existing connections, and new connections work.
    #[tokio::test]
    async fn reset_ends_connections_and_new_ones_pass() -> io::Result<()> {
        let (_server, network, mut client) = echo().await?;
        assert_eq!(network.hits(), 0);
        network.cut(Fault::Reset);
        assert!(timeout(LONG, round_trip(&mut client)).await?.is_err());
        assert_eq!(network.hits(), 1);
        let mut next = connect(&network).await?;
        assert_eq!(timeout(LONG, round_trip(&mut next)).await??, *b"hello");
        Ok(())
    }

    /// A stall delays bytes until the network is healed.
    #[tokio::test]
    async fn stalled_bytes_arrive_after_heal() -> io::Result<()> {
        let (_server, network, mut client) = echo().await?;
        network.cut(Fault::Stall);
        client.write_all(b"hello").await?;
        let mut reply = [0; 5];
        assert!(timeout(SHORT, client.read_exact(&mut reply)).await.is_err());
        assert_eq!(network.hits(), 1);
        network.heal();
        timeout(LONG, client.read_exact(&mut reply)).await??;
        assert_eq!(reply, *b"hello");
        Ok(())
    }

    /// A half-open connection receives nothing and is reset when the network is healed.
    #[tokio::test]
    async fn half_open_connection_is_silent_and_then_reset() -> io::Result<()> {
        let (_server, network, mut client) = echo().await?;
        network.cut(Fault::HalfOpen);
        assert!(timeout(SHORT, round_trip(&mut client)).await.is_err());
        assert_eq!(network.hits(), 1);
        network.heal();
        assert!(timeout(LONG, round_trip(&mut client)).await?.is_err());
        Ok(())
    }

    /// A failure without a connection is not counted as a hit.
    #[tokio::test]
    async fn fault_without_a_connection_hits_nothing() -> io::Result<()> {
        let (_server, network, client) = echo().await?;
        drop(client);
        // Wait until the proxy has noticed the end of the connection. The task of the connection
        // then drops its receivers.
        while network.state.receiver_count() > 1 {
            tokio::task::yield_now().await;
        }
        for fault in [Fault::Reset, Fault::Stall, Fault::HalfOpen] {
            network.cut(fault);
            network.heal();
        }
        assert_eq!(network.hits(), 0);
        Ok(())
    }
}
