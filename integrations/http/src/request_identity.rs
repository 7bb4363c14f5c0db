//! The identity of a request, and the responses that do not come from its handler.

use http::Response;
use idem_client::MessageId;
use idem_runtime::Error;

use crate::{
    body::{Body, Unread},
    fingerprint::Fingerprint,
    problem::Problem,
    recorded::Recorded,
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
        Self::Problem(Problem::of(&error))
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
        Some(recorded) => recorded.replay().map_err(|error| Problem::of(&error)),
    }
}

/// Returns the problem of a response that cannot be recorded.
pub(crate) fn unrecordable(unread: Unread) -> Problem {
    match unread {
        Unread::TooLarge => Problem::ResponseTooLarge,
        Unread::Broken(error) => {
            tracing::warn!(error, "the body of a response ended early");
            Problem::Failed
        }
    }
}
