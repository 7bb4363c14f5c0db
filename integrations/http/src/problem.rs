//! The error responses of the layer, as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use http::{HeaderValue, Response, StatusCode, header};
use idem_client::ErrorKind;
use idem_runtime::Error;
use serde_json::json;

use crate::body::{self, Body};

/// The reason why a request gets an error response of the layer, in place of the response of its
/// handler or a recorded response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    #[error("the request has no Idempotency-Key header")]
    MissingKey,
    #[error("the Idempotency-Key header is invalid: {0}")]
    BadKey(Cow<'static, str>),
    #[error("the caller of the request is not known, and each caller has its own keys")]
    UnknownCaller,
    #[error("the key together with the name of its caller is too long")]
    IdTooLong,
    #[error("the body of the request could not be read")]
    UnreadableRequest,
    #[error("the body of a request with an Idempotency-Key must not exceed {0} bytes")]
    RequestTooLarge(usize),
    #[error("a request with this key is being processed")]
    InProgress,
    #[error("this key was used before, but no response to it is recorded")]
    NotRecorded,
    #[error("this key was used before for another request: another method, path or body")]
    Mismatch,
    #[error("the response is too large to be recorded, so nothing was stored")]
    ResponseTooLarge,
    #[error("the request was not processed: its attempts are used up, and none has completed")]
    Exhausted,
    #[error("the request could not be processed")]
    Failed,
    #[error("the request could not be processed now; send it again with the same key")]
    Unavailable,
    #[error(
        "it is not known whether the request took effect; \
         send it again with the same key to find out"
    )]
    InDoubt,
}

impl Problem {
    /// Returns the status of the response, and the last part of the problem's `type`, which
    /// programs can test.
    pub(crate) fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::MissingKey => (StatusCode::BAD_REQUEST, "missing-key"),
            Self::BadKey(_) => (StatusCode::BAD_REQUEST, "bad-key"),
            Self::UnknownCaller => (StatusCode::FORBIDDEN, "unknown-caller"),
            Self::IdTooLong => (StatusCode::BAD_REQUEST, "key-too-long"),
            Self::UnreadableRequest => (StatusCode::BAD_REQUEST, "unreadable-request"),
            Self::RequestTooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "request-too-large"),
            Self::InProgress => (StatusCode::CONFLICT, "in-progress"),
            Self::NotRecorded => (StatusCode::CONFLICT, "not-recorded"),
            Self::Mismatch => (StatusCode::UNPROCESSABLE_ENTITY, "mismatch"),
            Self::ResponseTooLarge => (StatusCode::INTERNAL_SERVER_ERROR, "response-too-large"),
            Self::Exhausted => (StatusCode::INTERNAL_SERVER_ERROR, "exhausted"),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Self::InDoubt => (StatusCode::SERVICE_UNAVAILABLE, "in-doubt"),
        }
    }

    /// Returns whether the same request may soon succeed. Then the response has the header
    /// `Retry-After` with one second.
    fn passes(&self) -> bool {
        matches!(self, Self::InProgress | Self::Unavailable | Self::InDoubt)
    }

    /// Converts a problem that occurs after the handler has run. The handler may have had an effect
    /// outside of the database, so the result of the request is not known.
    pub(crate) fn after_work(self) -> Self {
        match self {
            Self::Unavailable => Self::InDoubt,
            other => other,
        }
    }

    pub(crate) fn response(&self) -> Response<Body> {
        let (status, name) = self.kind();
        let problem = json!({
            "type": format!("urn:idem:{name}"),
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.to_string(),
        });
        let mut response = Response::new(body::full(problem.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.passes() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Error> for Problem {
    /// Converts an error of the database and logs it. The text of the error is not sent to the
    /// client.
    fn from(error: Error) -> Self {
        tracing::warn!(%error, "a request with an idempotency key was not processed");
        match error.kind() {
            ErrorKind::AmbiguousCommit => Self::InDoubt,
            kind if kind.is_retryable() => Self::Unavailable,
            ErrorKind::ReadOnly => Self::Unavailable,
            _ => Self::Failed,
        }
    }
}
