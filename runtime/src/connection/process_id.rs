//! The process id that the server, or a pooler before it, has reported for a connection.
//!
//! The driver shows this id only in a cancel request of the protocol, so such a request is recorded
//! and not sent.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client,
    tls::{ChannelBinding, TlsConnect, TlsStream},
};

/// Returns the process id that was reported at the start of a connection. A pooler reports an id of
/// its own, which is not that of a process of the server.
pub(super) fn process_id(client: &Client) -> Option<i32> {
    /// The code of a cancel request, which comes before the process id.
    const CODE: [u8; 4] = 80_877_102_i32.to_be_bytes();
    let mut request = Recorder::default();
    client
        .cancel_token()
        .cancel_query_raw(&mut request, AnyTls)
        .now_or_never()?
        .ok()?;
    let code = request
        .0
        .windows(CODE.len())
        .position(|window| window == CODE)?;
    let (process_id, _) = request.0[code + CODE.len()..].split_first_chunk()?;
    Some(i32::from_be_bytes(*process_id))
}

/// Records what is written to it, and accepts every request for TLS.
#[derive(Default)]
struct Recorder(Vec<u8>);

impl AsyncRead for Recorder {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Recorder {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for &mut Recorder {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// TLS without encryption. No data leaves this process.
struct AnyTls;

impl<'a> TlsConnect<&'a mut Recorder> for AnyTls {
    type Stream = &'a mut Recorder;
    type Error = Infallible;
    type Future = Ready<Result<&'a mut Recorder, Infallible>>;

    fn connect(self, stream: &'a mut Recorder) -> Self::Future {
        ready(Ok(stream))
    }
}
