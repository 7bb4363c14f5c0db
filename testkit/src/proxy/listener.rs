//! What all proxies share: they accept connections and connect to a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::select;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The server to which a proxy connects.
#[derive(Clone, Debug)]
pub enum Target {
    /// The path of a Unix socket.
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A connection to a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Target {
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }
}

/// A port of 127.0.0.1 on which a proxy accepts connections. Dropping the listener closes the port
/// and the connections.
pub struct Listener {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Listener {
    /// Listens on a free port. `serve` forwards one connection until it ends. An error closes the
    /// connection, which the client sees.
    pub async fn start<F>(
        mut serve: impl FnMut(TcpStream) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                select! {
                    accepted = listener.accept() => match accepted {
                        Ok((client, _)) => {
                            // A client that is gone already is noticed by the next read.
                            let _ = client.set_nodelay(true);
                            connections.spawn(serve(client));
                        }
                        // The client has closed the connection, or the process has too many files
                        // open.
                        Err(_) => sleep(ACCEPT_PAUSE).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, accepting })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
