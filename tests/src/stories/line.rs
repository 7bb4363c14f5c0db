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
    pub async fn open(
        name: &'static str,
        server: Server,
        tongue: Tongue,
        fate: Arc<Fate>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let listening = tokio::spawn(async move {
            let mut number = 0;
            while let Ok((client, _)) = listener.accept().await {
                number += 1;
                let call = Call {
                    name: format!("{name} {number}"),
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
    name: String,
    ear: Ear,
    fate: Arc<Fate>,
}

impl Call {
    async fn pass(mut self, mut client: TcpStream, server: Server) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut server = server.connect().await?;
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut death = None;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let bytes = &asked[..read?];
                    if bytes.is_empty() {
                        return Ok(());
                    }
                    for piece in self.ear.ask(bytes) {
                        if piece.begins.is_some() && death.is_some() || self.fate.is_over() {
                            // It dies with the answer to what it said before.
                            break;
                        }
                        if let Some(name) = &piece.begins {
                            death = self.fate.turn(format!("{}: {name}", self.name));
                        }
                        if let Some(Moment::Unsaid | Moment::Torn) = death {
                            if death == Some(Moment::Torn) {
                                server.write_all(&piece.bytes[..piece.bytes.len() / 2]).await?;
                            }
                            self.fate.strike();
                            return fall_silent(client).await;
                        }
                        self.ear.pass(&piece);
                        server.write_all(&piece.bytes).await?;
                    }
                }
                read = server.read(&mut answered) => {
                    let bytes = &answered[..read?];
                    self.ear.answer(bytes);
                    // A server that has closed the connection, as it is told to, has answered too.
                    let is_answered = self.ear.is_answered() || bytes.is_empty();
                    match death {
                        Some(_) if is_answered => self.fate.seal(),
                        _ if self.fate.is_over() => return fall_silent(client).await,
                        _ if bytes.is_empty() => return Ok(()),
                        _ => {}
                    }
                    if death != Some(Moment::Unheard) {
                        client.write_all(bytes).await?;
                    }
                    if death.is_some() && is_answered {
                        self.fate.strike();
                        return fall_silent(client).await;
                    }
                }
            }
        }
    }
}

/// The worker is being killed: it shall not see the end of the connection before.
async fn fall_silent(mut client: TcpStream) -> std::io::Result<()> {
    tokio::io::copy(&mut client, &mut tokio::io::sink()).await?;
    Ok(())
}
