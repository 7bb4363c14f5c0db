//! A connection to a broker that a test can cut.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What is between a client and its server.
pub struct Line {
    /// The URL of the server, with the address of this line.
    pub url: String,
    state: Arc<State>,
}

struct State {
    is_open: watch::Sender<bool>,
    /// The bytes of the first answer that is held back.
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

    /// Whether the server has sent this text, and the client has it in its socket.
    pub fn has_passed(&self, text: &str) -> bool {
        contains(&self.state.received.lock().unwrap(), text.as_bytes())
    }

    /// Holds back what the server sends, from the answer that has these bytes in it.
    pub fn hold_back(&self, answer: &'static [u8]) {
        self.state.stop.send_replace(Some(answer));
    }

    /// How many connections have an answer that is held back.
    pub fn held_back(&self) -> usize {
        self.state.held_back.load(Ordering::SeqCst)
    }

    /// Passes what was held back.
    pub fn release(&self) {
        self.state.stop.send_replace(None);
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Ends all connections, and refuses others until it is mended.
    pub fn cut(&self) {
        self.state.is_open.send_replace(false);
    }

    pub fn mend(&self) {
        self.state.is_open.send_replace(true);
    }
}

impl State {
    /// Until one of the two sides has closed it, or the line is cut.
    async fn connect(&self, mut ours: TcpStream, server: &str) {
        let Ok(mut theirs) = TcpStream::connect(server).await else {
            return;
        };
        let mut is_open = self.is_open.subscribe();
        let (mut asked, mut answers) = ours.split();
        let (mut answered, mut questions) = theirs.split();
        tokio::select! {
            _ = is_open.wait_for(|is_open| !is_open) => {}
            _ = io::copy(&mut asked, &mut questions) => {}
            _ = self.pass(&mut answered, &mut answers) => {}
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

    /// Holds an answer back until it may pass.
    async fn hold(&self, answer: &[u8]) {
        let mut stop = self.stop.subscribe();
        let is_held = |stop: &Option<&[u8]>| stop.is_some_and(|bytes| contains(answer, bytes));
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

/// The host and the port of a URL.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    let (place, _) = rest.split_once('/').unwrap_or((rest, ""));
    place.rsplit_once('@').map_or(place, |(_, address)| address)
}
