//! A connection to a broker that a test can cut.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What is between a client and its server.
pub struct Line {
    /// The URL of the server, with the address of this line.
    pub url: String,
    is_open: watch::Sender<bool>,
    received: Arc<Mutex<Vec<u8>>>,
    /// Where the answers of the server are held back.
    stop: watch::Sender<Option<&'static [u8]>>,
}

impl Line {
    pub async fn to(url: &str) -> Self {
        let server = address(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace(&server, &listener.local_addr().unwrap().to_string());
        let (is_open, watched) = watch::channel(true);
        let received = Arc::new(Mutex::new(Vec::new()));
        let passed = Arc::clone(&received);
        let (stop, stops) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok((mut ours, _)) = listener.accept().await {
                let (server, mut watched) = (server.clone(), watched.clone());
                let (passed, stops) = (Arc::clone(&passed), stops.clone());
                tokio::spawn(async move {
                    let Ok(mut theirs) = TcpStream::connect(server).await else {
                        return;
                    };
                    let (mut asked, mut answers) = ours.split();
                    let (mut answered, mut questions) = theirs.split();
                    tokio::select! {
                        _ = watched.wait_for(|is_open| !is_open) => {}
                        _ = io::copy(&mut asked, &mut questions) => {}
                        _ = pass(&mut answered, &mut answers, &passed, stops) => {}
                    }
                });
            }
        });
        Self {
            url,
            is_open,
            received,
            stop,
        }
    }

    /// Whether the server has sent this text, and the client has it in its socket.
    pub fn has_passed(&self, text: &str) -> bool {
        let received = self.received.lock().unwrap();
        contains(&received, text.as_bytes())
    }

    /// Holds back what the server sends, from the answer that has these bytes in it.
    pub fn hold_back(&self, answer: &'static [u8]) {
        self.stop.send_replace(Some(answer));
    }

    /// Passes what was held back.
    pub fn release(&self) {
        self.stop.send_replace(None);
    }

    /// Ends all connections, and refuses others until it is mended.
    pub fn cut(&self) {
        self.is_open.send_replace(false);
    }

    pub fn mend(&self) {
        self.is_open.send_replace(true);
    }
}

async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    passed: &Mutex<Vec<u8>>,
    mut stops: watch::Receiver<Option<&'static [u8]>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let part = &buffer[..length];
        let passes = |stop: &Option<&[u8]>| stop.is_none_or(|answer| !contains(part, answer));
        // An error says that the test has dropped the line.
        let _ = stops.wait_for(passes).await;
        to.write_all(part).await?;
        passed.lock().unwrap().extend_from_slice(part);
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
