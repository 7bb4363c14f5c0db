//! HTTP bodies: streamed, or read into memory up to a limit.

use std::{error::Error, io};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of the requests that [`IdempotencyService`](crate::IdempotencyService) passes on
/// and of the responses that it returns: any body as a boxed trait object, as in axum. Its error
/// contains the error of that body.
// The error is not a `BoxError`: the compiler then cannot prove that the future of a handler is
// `Send`.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    TooLarge,
    Broken(BoxError),
}

/// Streams a body.
pub(crate) fn pass<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(io::Error::other).boxed_unsync()
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Reads a body of at most `limit` bytes into memory. Trailers are dropped.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    // A body that announces more than the limit need not be read.
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    match Limited::new(body, limit).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(error) => Err(Unread::Broken(error)),
    }
}
