//! The identity of a request, the response of its handler, and the responses without the handler.

use bytes::Bytes;
use http::{Request, Response, response::Parts};
use idem_client::MessageId;
use idem_runtime::Error;
use tower::Service;

use crate::{
    IdempotencyLayer,
    body::{self, Body, BoxError, Unread},
    fingerprint::Fingerprint,
    problem::Problem,
    recorded::Recorded,
    statuses::keeps,
};

/// The identity of a request: its id, and the fingerprint of its content.
pub(crate) struct RequestIdentity {
    pub(crate) id: MessageId,
    pub(crate) fingerprint: Fingerprint,
}

/// The reason why a request gets neither the response of its handler nor a recorded response.
pub(crate) enum Failure<E> {
    /// The problem becomes the response.
    Problem(Problem),
    /// The inner service failed.
    Service(E),
}

impl<E> From<Problem> for Failure<E> {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl<E> From<Error> for Failure<E> {
    fn from(error: Error) -> Self {
        Self::Problem(error.into())
    }
}

/// Returns the response to a request with a key that was used before.
pub(crate) fn replay(
    found: Option<Recorded>,
    fingerprint: &Fingerprint,
) -> Result<Response<Body>, Problem> {
    match found {
        None => Err(Problem::NotRecorded),
        Some(recorded) if !recorded.answers(fingerprint) => Err(Problem::Mismatch),
        Some(recorded) => Ok(recorded.replay()?),
    }
}

/// The response of a handler.
pub(crate) enum Handled {
    /// A response to be recorded.
    ToRecord(Parts, Bytes),
    /// A response that is not recorded. The handler runs again for the next request with this key.
    Passed(Response<Body>),
}

/// Runs the handler, and reads the body of a response that is to be recorded.
pub(crate) async fn handle<S, R>(
    layer: &IdempotencyLayer,
    service: &mut S,
    request: Request<Body>,
) -> Result<Handled, Failure<S::Error>>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let response = service.call(request).await.map_err(Failure::Service)?;
    if !keeps(response.status()) {
        return Ok(Handled::Passed(response.map(body::pass)));
    }
    let (parts, body) = response.into_parts();
    match body::read(body, layer.response_limit).await {
        Ok(body) => Ok(Handled::ToRecord(parts, body)),
        Err(unread) => Err(unrecordable(unread).into()),
    }
}

/// Returns the problem of a response that cannot be recorded.
fn unrecordable(unread: Unread) -> Problem {
    match unread {
        Unread::TooLarge => Problem::ResponseTooLarge,
        Unread::Broken(error) => {
            tracing::warn!(error, "the body of a response ended early");
            Problem::Failed
        }
    }
}
