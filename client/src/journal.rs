//! The journal of external calls: each call to something outside of the database is recorded before
//! it is made and after it has returned.
//!
//! A call with a recorded result is never made again. Each attempt uses the same idempotency key.
//! If the result of an earlier attempt is not known, the next attempt is informed of this
//! ([`CallState::Unknown`]).
//!
//! The journal of a message is kept as long as its claim.

use std::str::FromStr;

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::types::Type;
use tracing::Instrument;

use crate::{Destination, Error, Executor, MessageId, Row, escape, span};

/// The state of an external call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallState {
    /// The call was not made before, or every attempt certainly had no effect. Make the call.
    New,
    /// An earlier attempt began the call and did not end it. It is not known whether the call was
    /// made and whether it returned.
    Unknown,
    /// The call has returned, and its result is recorded.
    Done,
    /// The call was rejected permanently.
    Failed,
}

impl FromStr for CallState {
    type Err = Error;

    fn from_str(state: &str) -> Result<Self, Error> {
        match state {
            "new" => Ok(Self::New),
            "unknown" => Ok(Self::Unknown),
            "done" => Ok(Self::Done),
            "failed" => Ok(Self::Failed),
            other => Err(Error::Unexpected(format!(
                "state {other:?} of an external call"
            ))),
        }
    }
}

/// An external call that was begun.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "the state decides whether to make the call"]
pub struct Begun {
    /// The state of the call.
    pub state: CallState,
    /// A UUID that is the same for every attempt. Pass it to the external system.
    pub idempotency_key: String,
    /// The result of the call, if the state is [`Done`](CallState::Done).
    pub response: Option<Value>,
    /// The number of this attempt at the step, from 1.
    pub attempt: i32,
    /// When the first attempt without a recorded result began. For a new call this is now.
    pub begun_at: Option<OffsetDateTime>,
    /// The error of a call that was rejected permanently.
    pub error: Option<String>,
}

/// One entry in the journal of a message.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// The name of the step.
    pub step: String,
    /// The state of the call.
    pub state: CallState,
    /// The number of attempts that were begun.
    pub attempt: i32,
    /// When the call was begun.
    pub begun_at: Option<OffsetDateTime>,
    /// When the call ended.
    pub ended_at: Option<OffsetDateTime>,
    /// The result of the call.
    pub response: Option<Value>,
    /// The error of the call.
    pub error: Option<String>,
}

impl TryFrom<&Row> for Recorded {
    type Error = Error;

    fn try_from(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            step: row.try_get(0)?,
            state: row.try_get::<_, &str>(1)?.parse()?,
            attempt: row.try_get(2)?,
            begun_at: row.try_get(3)?,
            ended_at: row.try_get(4)?,
            response: row.try_get(5)?,
            error: row.try_get(6)?,
        })
    }
}

/// Begins one step of a message. Commit, and make the external call after that.
///
/// `step` has 1 to 255 bytes. Fails with 23000 if `request` differs from the first request of this
/// step.
pub async fn begin_call(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    request: Option<&Value>,
) -> Result<Begun, Error> {
    let span = span::of_message("begin_call", id, destination);
    async {
        let row = executor
            .fetch_one(
                "SELECT state::text, idempotency_key, response, attempt, begun_at, error \
                 FROM idem_begin_call($1, $2, $3, $4)",
                &[
                    id.parameter(),
                    destination.parameter(),
                    (&step, Type::TEXT),
                    (&request, Type::JSONB),
                ],
            )
            .await?;
        let state: &str = row.try_get(0)?;
        span.record("idem.outcome", state);
        Ok(Begun {
            state: state.parse()?,
            idempotency_key: row.try_get(1)?,
            response: row.try_get(2)?,
            attempt: row.try_get(3)?,
            begun_at: row.try_get(4)?,
            error: row.try_get(5)?,
        })
    }
    .instrument(span.clone())
    .await
}

/// Records the result of an external call. Recording the same result twice is allowed. Fails with
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) if the step was never begun, or if it
/// has already ended with a different result.
pub async fn finish_call(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    response: Option<&Value>,
) -> Result<(), Error> {
    executor
        .fetch_one(
            "SELECT idem_finish_call($1, $2, $3, $4)",
            &[
                id.parameter(),
                destination.parameter(),
                (&step, Type::TEXT),
                (&response, Type::JSON),
            ],
        )
        .instrument(span::of_message("finish_call", id, destination))
        .await?;
    Ok(())
}

/// Records that an external call failed. With `is_retryable` the call certainly had no effect and
/// may be made again. Without it the call was rejected permanently. A long error is truncated.
pub async fn fail_call(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    error: &str,
    is_retryable: bool,
) -> Result<(), Error> {
    let error = escape::without_zero_bytes(error);
    executor
        .fetch_one(
            "SELECT idem_fail_call($1, $2, $3, $4, $5)",
            &[
                id.parameter(),
                destination.parameter(),
                (&step, Type::TEXT),
                (&error, Type::TEXT),
                (&is_retryable, Type::BOOL),
            ],
        )
        .instrument(span::of_message("fail_call", id, destination))
        .await?;
    Ok(())
}

/// Returns the journal of a message. This function only reads, so it also works on a standby.
pub async fn calls(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<Vec<Recorded>, Error> {
    let rows = executor
        .fetch_all(
            "SELECT step, state::text, attempt, begun_at, ended_at, response, error \
             FROM idem_calls($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("calls", id, destination))
        .await?;
    rows.iter().map(Recorded::try_from).collect()
}
