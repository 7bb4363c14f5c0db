//! An HTTP server on its own port.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use axum::Router;
use tokio::{net::TcpListener, task::JoinHandle};

/// An HTTP server that stops when this value is dropped.
pub(super) struct Web {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Web {
    pub async fn serve(app: Router) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move {
            // The server runs until it is aborted. Errors of a connection are visible to the
            // client only.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, serving })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
