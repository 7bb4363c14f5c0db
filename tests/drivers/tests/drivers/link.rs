//! A TCP proxy between a program and a server.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The address of a server.
#[derive(Clone)]
pub enum Server {
    /// A port of 127.0.0.1.
    Port(u16),
    Socket(PathBuf),
}

/// A proxy on a port of 127.0.0.1, until the value is dropped.
pub struct Link {
    port: u16,
    state: Arc<State>,
    listening: AbortHandle,
}

#[derive(Default)]
struct State {
    /// The number of connections that were opened.
    opened: AtomicUsize,
    /// The number of the first connection whose bytes reach the server.
    first_heard: AtomicUsize,
    cut: Notify,
}

impl Link {
    pub async fn to(server: Server) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let connections = listen(listener, server, Arc::clone(&state));
        Ok(Self {
            port,
            state,
            listening: tokio::spawn(connections).abort_handle(),
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Drops all bytes that the programs send from now on over the connections that are open. The
    /// server gets the end of such a connection, and its bytes still reach the program.
    pub fn mute(&self) {
        let opened = self.state.opened.load(Ordering::SeqCst);
        self.state.first_heard.store(opened, Ordering::SeqCst);
    }

    /// Closes all connections that are open.
    pub fn cut(&self) {
        self.state.cut.notify_waiters();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, server: Server, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        let number = state.opened.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(connect(client, server.clone(), Arc::clone(&state), number));
    }
}

async fn connect(client: TcpStream, server: Server, state: Arc<State>, number: usize) {
    match server {
        Server::Port(port) => {
            if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                forward(client, server, &state, number).await;
            }
        }
        Server::Socket(path) => {
            if let Ok(server) = UnixStream::connect(path).await {
                forward(client, server, &state, number).await;
            }
        }
    }
}

/// Forwards bytes until one side ends. Both connections are closed then.
async fn forward(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    state: &State,
    number: usize,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    tokio::select! {
        _ = copy(&mut from_server, &mut to_client) => {}
        () = state.cut.notified() => {}
        _ = hear(&mut from_client, &mut to_server, state, number) => {}
    }
}

/// Forwards what the client sends, unless the connection is muted.
async fn hear(
    client: &mut (impl AsyncRead + Unpin),
    server: &mut (impl AsyncWrite + Unpin),
    state: &State,
    number: usize,
) -> Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = client.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        if number >= state.first_heard.load(Ordering::SeqCst) {
            server.write_all(&bytes[..count]).await?;
            server.flush().await?;
        }
    }
}
