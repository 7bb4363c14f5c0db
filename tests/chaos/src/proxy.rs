//! A TCP proxy that can be switched to another target and can interrupt its connections.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The server to which a proxy connects.
#[derive(Clone, Debug)]
pub enum Target {
    /// The path of a Unix socket of PostgreSQL.
    Unix(PathBuf),
    /// A port of 127.0.0.1.
    Tcp(u16),
}

/// The kinds of network failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Every connection is reset on both sides. New connections work.
    Reset,
    /// No data passes until the proxy is healed. Then the delayed data passes.
    Stall,
    /// The server side of every connection is closed, and the client receives nothing until the
    /// proxy is healed. New connections receive nothing either.
    HalfOpen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Open,
    Stalled,
    HalfOpen,
}

/// The state of the network that all connections observe. A change of the epoch resets all existing
/// connections.
#[derive(Clone, Copy, Debug)]
struct Line {
    mode: Mode,
    epoch: u64,
}

/// A running proxy, which is stopped when this value is dropped.
pub struct Proxy {
    port: u16,
    target: Arc<Mutex<Target>>,
    line: watch::Sender<Line>,
    hit: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(target: Target) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let target = Arc::new(Mutex::new(target));
        let (line, seen) = watch::channel(Line {
            mode: Mode::Open,
            epoch: 0,
        });
        let hit = Arc::default();
        let wire = Wire {
            target: Arc::clone(&target),
            line: seen,
            hit: Arc::clone(&hit),
        };
        let accepting = tokio::spawn(accept(listener, wire));
        Ok(Self {
            port,
            target,
            line,
            hit,
            accepting,
        })
    }

    /// Returns the port on which the proxy listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards new connections to this target from now on, and resets the existing connections.
    pub fn switch(&self, target: Target) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
        self.cut(Cut::Reset);
    }

    /// Injects a network failure.
    pub fn cut(&self, cut: Cut) {
        self.line.send_modify(|line| match cut {
            Cut::Reset => line.epoch += 1,
            Cut::Stall => line.mode = Mode::Stalled,
            Cut::HalfOpen => line.mode = Mode::HalfOpen,
        });
    }

    /// Returns the number of times that a failure has affected a connection so far: it was reset,
    /// its data was held back, or it was left half open.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hit.load(Ordering::Relaxed)
    }

    /// Ends a stall or half-open failure. Connections that were half open are reset.
    pub fn heal(&self) {
        self.line.send_modify(|line| {
            if line.mode == Mode::HalfOpen {
                line.epoch += 1;
            }
            line.mode = Mode::Open;
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut(Cut::Reset);
    }
}

/// The state that a connection shares with its proxy.
#[derive(Clone)]
struct Wire {
    target: Arc<Mutex<Target>>,
    line: watch::Receiver<Line>,
    hit: Arc<AtomicU64>,
}

impl Wire {
    fn note_hit(&self) {
        self.hit.fetch_add(1, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, wire: Wire) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(carry(client, wire.clone()));
    }
}

/// Forwards one connection until it ends. When the proxy ends the connection, the client sees a
/// reset.
async fn carry(client: TcpStream, wire: Wire) {
    let epoch = wire.line.borrow().epoch;
    let mut ends = wire.line.clone();
    let mut halves = wire.line.clone();
    if client.set_nodelay(true).is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let is_over = {
        let carried = async {
            // While the network is half open, a new connection receives nothing.
            let is_open = |line: &Line| line.mode != Mode::HalfOpen;
            if halves.wait_for(is_open).await.is_err() {
                return;
            }
            let target = wire
                .target
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let passed = async {
                match target {
                    Target::Tcp(port) => {
                        let server = TcpStream::connect(("127.0.0.1", port)).await?;
                        server.set_nodelay(true)?;
                        let (from, to) = server.into_split();
                        both(&mut from_client, &mut to_client, from, to, &wire).await
                    }
                    Target::Unix(path) => {
                        let (from, to) = UnixStream::connect(path).await?.into_split();
                        both(&mut from_client, &mut to_client, from, to, &wire).await
                    }
                }
            };
            let is_cut = tokio::select! {
                _ = passed => false,
                cut = halves.wait_for(|line| line.mode == Mode::HalfOpen) => cut.is_ok(),
            };
            // The end of `passed` has closed the server side. The client side stays open until the
            // proxy is healed.
            if is_cut {
                wire.note_hit();
                let _ = halves.wait_for(is_open).await;
            }
        };
        tokio::select! {
            () = carried => false,
            _ = ends.wait_for(|line| line.epoch != epoch) => true,
        }
    };
    if is_over {
        wire.note_hit();
    }
    if is_over && let Ok(client) = from_client.reunite(to_client) {
        let _ = client.set_zero_linger();
    }
}

/// Forwards bytes in both directions until one direction ends.
async fn both(
    from_client: &mut (impl AsyncRead + Unpin),
    to_client: &mut (impl AsyncWrite + Unpin),
    from_server: impl AsyncRead + Unpin,
    to_server: impl AsyncWrite + Unpin,
    wire: &Wire,
) -> std::io::Result<()> {
    tokio::select! {
        ended = pass(from_client, to_server, wire) => ended,
        ended = pass(from_server, to_client, wire) => ended,
    }
}

/// Forwards bytes in one direction, and holds them back while the network is stalled.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    wire: &Wire,
) -> std::io::Result<()> {
    let mut line = wire.line.clone();
    let mut bytes = vec![0; 1 << 14];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if line.borrow().mode == Mode::Stalled {
            wire.note_hit();
        }
        if line
            .wait_for(|line| line.mode != Mode::Stalled)
            .await
            .is_err()
        {
            return Ok(());
        }
        to.write_all(&bytes[..read]).await?;
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
    async fn echo() -> Result<(Proxy, TcpStream)> {
        let server = TcpListener::bind("127.0.0.1:0").await?;
        let port = server.local_addr()?.port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let proxy = Proxy::start(Target::Tcp(port)).await?;
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
        assert_eq!(round_trip(&mut client).await?, *b"hello");
        Ok((proxy, client))
    }

    async fn round_trip(client: &mut TcpStream) -> std::io::Result<[u8; 5]> {
        client.write_all(b"hello").await?;
        let mut reply = [0; 5];
        client.read_exact(&mut reply).await?;
        Ok(reply)
    }

    /// A reset ends existing connections, and new connections work.
    #[tokio::test]
    async fn reset_ends_connections_and_new_ones_pass() -> Result<()> {
        let (proxy, mut client) = echo().await?;
        assert_eq!(proxy.hits(), 0);
        proxy.cut(Cut::Reset);
        assert!(timeout(LONG, round_trip(&mut client)).await?.is_err());
        assert_eq!(proxy.hits(), 1);
        let mut next = TcpStream::connect(("127.0.0.1", proxy.port())).await?;
        assert_eq!(timeout(LONG, round_trip(&mut next)).await??, *b"hello");
        Ok(())
    }

    /// A stall delays bytes until the proxy is healed.
    #[tokio::test]
    async fn stalled_bytes_arrive_after_heal() -> Result<()> {
        let (proxy, mut client) = echo().await?;
        proxy.cut(Cut::Stall);
        client.write_all(b"hello").await?;
        let mut reply = [0; 5];
        assert!(timeout(SHORT, client.read_exact(&mut reply)).await.is_err());
        assert_eq!(proxy.hits(), 1);
        proxy.heal();
        timeout(LONG, client.read_exact(&mut reply)).await??;
        assert_eq!(reply, *b"hello");
        Ok(())
    }

    /// A half-open connection receives nothing and is reset when the proxy is healed.
    #[tokio::test]
    async fn half_open_connection_is_silent_and_then_reset() -> Result<()> {
        let (proxy, mut client) = echo().await?;
        proxy.cut(Cut::HalfOpen);
        assert!(timeout(SHORT, round_trip(&mut client)).await.is_err());
        assert_eq!(proxy.hits(), 1);
        proxy.heal();
        assert!(timeout(LONG, round_trip(&mut client)).await?.is_err());
        Ok(())
    }

    /// A failure without a connection is not counted as a hit.
    #[tokio::test]
    async fn cut_without_a_connection_hits_nothing() -> Result<()> {
        let (proxy, client) = echo().await?;
        drop(client);
        // Wait until the proxy has noticed the end of the connection. The task of the connection
        // then drops its receivers.
        while proxy.line.receiver_count() > 1 {
            tokio::task::yield_now().await;
        }
        for cut in [Cut::Reset, Cut::Stall, Cut::HalfOpen] {
            proxy.cut(cut);
            proxy.heal();
        }
        assert_eq!(proxy.hits(), 0);
        Ok(())
    }
}
