//! A connection to a broker that a test can cut.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What is between a client and its server.
pub struct Line {
    /// The URL of the server, with the address of this line.
    pub url: String,
    is_open: watch::Sender<bool>,
}

impl Line {
    pub async fn to(url: &str) -> Self {
        let server = address(url).to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace(&server, &listener.local_addr().unwrap().to_string());
        let (is_open, watched) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut ours, _)) = listener.accept().await {
                let (server, mut watched) = (server.clone(), watched.clone());
                tokio::spawn(async move {
                    let Ok(mut theirs) = TcpStream::connect(server).await else {
                        return;
                    };
                    tokio::select! {
                        _ = watched.wait_for(|is_open| !is_open) => {}
                        _ = copy_bidirectional(&mut ours, &mut theirs) => {}
                    }
                });
            }
        });
        Self { url, is_open }
    }

    /// Ends all connections, and refuses others until it is mended.
    pub fn cut(&self) {
        self.is_open.send_replace(false);
    }

    pub fn mend(&self) {
        self.is_open.send_replace(true);
    }
}

/// The host and the port of a URL.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap();
    let (place, _) = rest.split_once('/').unwrap_or((rest, ""));
    place.rsplit_once('@').map_or(place, |(_, address)| address)
}
