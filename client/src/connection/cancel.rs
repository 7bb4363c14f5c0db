//! Cancels the statement of another connection.
//!
//! Not with the request of the protocol: `tokio-postgres` closes the socket of a request at once,
//! and PgBouncer 1.18 and 1.19 end with a fatal error then. A pool that the user has built does not
//! tell its TLS either. So another connection of the same manager calls `pg_cancel_backend`.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    pin::Pin,
    task::{Context, Poll},
};

use deadpool::managed::Manager as _;
use deadpool_postgres::Pool;
use futures_util::FutureExt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Semaphore,
};
use tokio_postgres::{
    CancelToken,
    tls::{ChannelBinding, TlsConnect, TlsStream},
    types::Type,
};

use crate::Error;

/// How many connections of this process exist at a time for nothing else. They come on top of those
/// of the pools, which may all be in use.
static PLACES: Semaphore = Semaphore::const_new(4);

/// What a request to cancel has reached.
pub(super) enum Reached {
    Server,
    /// A pooler stands in front of the server, and only the pooler knows the backend.
    Pooler,
}

/// Cancels the statement of the connection that has this token.
pub(super) async fn cancel(pool: &Pool, token: &CancelToken) -> Result<Reached, Error> {
    let _place = PLACES.acquire().await;
    let client = pool.manager().create().await?;
    // A pooler gives its clients process ids of its own.
    let sql = "SELECT CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) $1 \
               THEN pg_catalog.pg_cancel_backend($2) END";
    let (own, other) = (process_id(&client.cancel_token()), process_id(token));
    let rows = client.query_typed(sql, &[(&own, Type::INT4), (&other, Type::INT4)]).await?;
    let cancelled: Option<bool> = rows.first().and_then(|row| row.get(0));
    Ok(match cancelled {
        Some(_) => Reached::Server,
        None => Reached::Pooler,
    })
}

/// The process id that the server has told at the start of a connection. The library shows it only
/// in the request of the protocol.
fn process_id(token: &CancelToken) -> Option<i32> {
    /// What comes before the process id.
    const CODE: [u8; 4] = 80_877_102_i32.to_be_bytes();
    let mut request = Recorder::default();
    token.cancel_query_raw(&mut request, AnyTls).now_or_never()?.ok()?;
    let code = request.0.windows(CODE.len()).position(|window| window == CODE)?;
    let (process_id, _) = request.0[code + CODE.len()..].split_first_chunk()?;
    Some(i32::from_be_bytes(*process_id))
}

/// Records what is written to it. It accepts every request for TLS.
#[derive(Default)]
struct Recorder(Vec<u8>);

impl AsyncRead for Recorder {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Recorder {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

/// TLS that encrypts nothing: nothing leaves this process.
struct AnyTls;

impl<'a> TlsConnect<&'a mut Recorder> for AnyTls {
    type Stream = &'a mut Recorder;
    type Error = Infallible;
    type Future = Ready<Result<&'a mut Recorder, Infallible>>;

    fn connect(self, stream: &'a mut Recorder) -> Self::Future {
        ready(Ok(stream))
    }
}
