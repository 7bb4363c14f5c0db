//! A link for requests that hold a secret, to servers that offer no TLS.

use std::{
    future::{Ready, ready},
    io,
};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::{MakeTlsConnect, NoTlsStream, TlsConnect};

/// Fails where the server offers TLS. `NoTls` would go on in plaintext there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainOnly;

impl<S> MakeTlsConnect<S> for PlainOnly
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    type Stream = NoTlsStream;
    type TlsConnect = Self;
    type Error = io::Error;

    fn make_tls_connect(&mut self, _: &str) -> io::Result<Self> {
        Ok(*self)
    }
}

impl<S> TlsConnect<S> for PlainOnly
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    type Stream = NoTlsStream;
    type Error = io::Error;
    type Future = Ready<io::Result<NoTlsStream>>;

    fn connect(self, _: S) -> Self::Future {
        ready(Err(io::Error::other(
            "the server offers TLS, and the TLS of the pool is not known",
        )))
    }
}
