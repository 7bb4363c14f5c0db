//! The error for a server that accepts a connection and then sends nothing.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that always fails, with an error for a server that was silent for this time. The stream
/// is needed because `tokio-postgres` converts an I/O error into its own error only if a stream
/// returns it.
pub(super) struct Silent(pub(super) Duration);

impl Silent {
    fn error(&self) -> io::Error {
        let text = format!(
            "the server did not accept the connection within {:?}",
            self.0
        );
        io::Error::new(io::ErrorKind::TimedOut, text)
    }
}

impl AsyncRead for Silent {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(self.error()))
    }
}

impl AsyncWrite for Silent {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(self.error()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(self.error()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
