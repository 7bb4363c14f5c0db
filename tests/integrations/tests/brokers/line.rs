//! A proxy in front of a broker. The proxy can cut connections and delay responses.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A TCP proxy between a client and its server.
pub struct Line {
    /// The URL of the server, in which the address is replaced by the address of this proxy.
    pub url: String,
    state: Arc<State>,
}

struct State {
    is_open: watch::Sender<bool>,
    /// Bytes that identify the first response to hold back.
    stop: watch::Sender<Option<&'static [u8]>>,
    connections: AtomicUsize,
    held_back: AtomicUsize,
    received: Mutex<Vec<u8>>,
}

impl Line {
    pub async fn to(url: &str) -> Self {
        let server = address(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace(&server, &listener.local_addr().unwrap().to_string());
        let state = Arc::new(State {
            is_open: watch::Sender::new(true),
            stop: watch::Sender::new(None),
            connections: AtomicUsize::new(0),
            held_back: AtomicUsize::new(0),
            received: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((ours, _)) = listener.accept().await {
                let (server, state) = (server.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    state.connections.fetch_add(1, Ordering::SeqCst);
                    state.connect(ours, &server).await;
                    state.connections.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { url, state }
    }

    /// Returns true if the server has sent this text and the proxy has written it to the socket of
    /// the client.
    pub fn has_passed(&self, text: &str) -> bool {
        contains(&self.state.received.lock().unwrap(), text.as_bytes())
    }

    /// Holds back, on each connection, the first response that contains these bytes and everything
    /// that the server sends after it.
    pub fn hold_back(&self, response: &'static [u8]) {
        self.state.stop.send_replace(Some(response));
    }

    /// Returns the number of connections with a response that is held back.
    pub fn held_back(&self) -> usize {
        self.state.held_back.load(Ordering::SeqCst)
    }

    /// Forwards everything that was held back.
    pub fn release(&self) {
        self.state.stop.send_replace(None);
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Closes all connections. New connections are closed until `mend` is called.
    pub fn cut(&self) {
        self.state.is_open.send_replace(false);
    }

    pub fn mend(&self) {
        self.state.is_open.send_replace(true);
    }
}

impl State {
    /// Forwards in both directions until one side closes the connection or `cut` is called.
    async fn connect(&self, mut ours: TcpStream, server: &str) {
        let Ok(mut theirs) = TcpStream::connect(server).await else {
            return;
        };
        let mut is_open = self.is_open.subscribe();
        let (mut client_read, mut client_write) = ours.split();
        let (mut server_read, mut server_write) = theirs.split();
        tokio::select! {
            _ = is_open.wait_for(|is_open| !is_open) => {}
            _ = io::copy(&mut client_read, &mut server_write) => {}
            _ = self.pass(&mut server_read, &mut client_write) => {}
        }
    }

    async fn pass(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            self.hold(&buffer[..length]).await;
            to.write_all(&buffer[..length]).await?;
            self.received
                .lock()
                .unwrap()
                .extend_from_slice(&buffer[..length]);
        }
    }

    /// Waits until `release` is called if this response must be held back.
    async fn hold(&self, response: &[u8]) {
        let mut stop = self.stop.subscribe();
        let is_held = |stop: &Option<&[u8]>| stop.is_some_and(|bytes| contains(response, bytes));
        if is_held(&stop.borrow()) {
            self.held_back.fetch_add(1, Ordering::SeqCst);
            stop.wait_for(|stop| !is_held(stop)).await.unwrap();
            self.held_back.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Returns the host and the port of a URL.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, address)| address)
}
