//! What a worker reaches a server through.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Result;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinHandle,
};

use super::{
    fate::{Fate, Moment},
    speech::{Ear, Tongue},
};

/// Where a line ends.
#[derive(Clone, Debug)]
pub enum Server {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port.
    Tcp(SocketAddr),
}

/// A port that leads to a server, until the fate of the worker is sealed.
pub struct Line {
    address: SocketAddr,
    listening: JoinHandle<()>,
}

/// A connection to a server.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Line {
    /// Opens a line. `name` is for the names of the turns.
    pub async fn open(name: &'static str, server: Server, tongue: Tongue, fate: Arc<Fate>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let call = Call {
                    name,
                    ear: Ear::new(tongue),
                    fate: Arc::clone(&fate),
                };
                // An error is the end of the connection, for both.
                tokio::spawn(call.pass(client, server.clone()));
            }
        });
        Ok(Self { address, listening })
    }

    /// Where a worker connects to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Server {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
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

/// One connection.
struct Call {
    name: &'static str,
    ear: Ear,
    fate: Arc<Fate>,
}

impl Call {
    async fn pass(mut self, mut client: TcpStream, server: Server) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut server = server.connect().await?;
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut server_spoke = true;
        let mut death = None;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let bytes = &asked[..read?];
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    if self.fate.is_over() {
                        return self.fall_silent(client).await;
                    }
                    if std::mem::take(&mut server_spoke) {
                        let said = self.ear.name(bytes);
                        death = self.fate.turn(format!("{}: {said}", self.name));
                        match death {
                            Some(Moment::Unsaid) => return self.strike(client).await,
                            Some(Moment::Torn) => {
                                server.write_all(&bytes[..bytes.len() / 2]).await?;
                                return self.strike(client).await;
                            }
                            Some(Moment::Unheard | Moment::Heard) | None => {}
                        }
                    } else {
                        self.ear.name(bytes);
                    }
                    server.write_all(bytes).await?;
                }
                read = server.read(&mut answered) => {
                    // A server that has closed the connection, as it is told to, has answered too.
                    let bytes = &answered[..read?];
                    if death == Some(Moment::Unheard) {
                        return self.strike(client).await;
                    }
                    if self.fate.is_over() {
                        return self.fall_silent(client).await;
                    }
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    server_spoke = true;
                    if death == Some(Moment::Heard) {
                        // What it does with the answer does not pass.
                        self.fate.seal();
                        client.write_all(bytes).await?;
                        return self.strike(client).await;
                    }
                    client.write_all(bytes).await?;
                }
            }
        }
    }

    async fn strike(&self, client: TcpStream) -> std::io::Result<()> {
        self.fate.strike();
        self.fall_silent(client).await
    }

    /// The worker is being killed: it shall not see the end of the connection before.
    async fn fall_silent(&self, mut client: TcpStream) -> std::io::Result<()> {
        tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
        Ok(())
    }
}
