//! Calls to something outside of the database, taken down before they are made and after they were
//! answered.
//!
//! What is asked of a card gateway, a carrier or a mail server cannot share a transaction. The
//! journal makes that honest: a step that was answered is never asked again, each attempt asks
//! under the same idempotency key, and where an earlier attempt asked and never heard, whoever asks
//! again is told so ([`OnUnknown`]).
//!
//! ```
//! # struct Gateway;
//! # impl Gateway { async fn charge(&self, _: u32, _: String) -> Result<String, std::io::Error> { Ok(String::new()) } }
//! use idem_client::{Effect, Handled, Message, lease::Work};
//!
//! # fn handler(gateway: &'static Gateway) -> impl idem_client::lease::LeasedHandler {
//! let handler = move |work: Work, message: Message| async move {
//!     let cents: u32 = message.json()?;
//!     let receipt: String = work.calls().once("charge", &cents, |key| gateway.charge(cents, key)).await?;
//!     Ok(vec![Effect::json("receipts", &receipt)?])
//! };
//! # handler }
//! ```
//!
//! The journal of a message is kept as long as its claim.

#[cfg(feature = "runtime")]
mod calls;
mod error;
#[cfg(feature = "runtime")]
mod unknown;

use std::str::FromStr;

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::{GenericClient, Row, types::Type};
use tracing::Instrument;

use crate::{Destination, Error, MessageId, span, sql};

#[cfg(feature = "runtime")]
pub use calls::Calls;
pub use error::{CallError, CallFailed};
#[cfg(feature = "runtime")]
pub use unknown::{OnUnknown, Unheard};

/// What is known of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallState {
    /// Ask.
    New,
    /// An earlier attempt began it and never ended it: it was answered or not, asked or not.
    Unknown,
    /// It was answered, and the answer is recorded.
    Done,
    /// It was refused for good.
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
            other => Err(Error::Unexpected(format!("state {other:?} of a call"))),
        }
    }
}

/// A call that was begun.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[must_use = "only its state says whether to ask"]
pub struct Begun {
    /// What is known of it.
    pub state: CallState,
    /// A uuid that is the same for every attempt, for whoever is asked.
    pub idempotency_key: String,
    /// What was answered, if it is done.
    pub response: Option<Value>,
    /// The how manyth attempt at this step, from 1.
    pub attempt: i32,
    /// When the first attempt began that was never ended; now if it is new.
    pub begun_at: Option<OffsetDateTime>,
    /// Why it failed for good.
    pub error: Option<String>,
}

/// One step of a message's journal.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Recorded {
    /// Its name.
    pub step: String,
    /// What is known of it.
    pub state: CallState,
    /// How many attempts were begun.
    pub attempt: i32,
    /// When it was begun.
    pub begun_at: Option<OffsetDateTime>,
    /// When it ended.
    pub ended_at: Option<OffsetDateTime>,
    /// What was answered.
    pub response: Option<Value>,
    /// Why it failed.
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

/// Begins one step of a message's work. Commit, and ask then.
///
/// Another request than the first one of this step is 23000. A step has 1 to 255 bytes.
pub async fn begin_call(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    request: Option<&Value>,
) -> Result<Begun, Error> {
    let span = span::of_message("begin_call", id, destination);
    async {
        let row = client
            .query_typed_one(
                "SELECT state::text, idempotency_key, response, attempt, begun_at, error FROM idem_begin_call($1, $2, $3, $4)",
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

/// Takes down what was answered. Twice the same answer is fine;
/// [`ErrorKind::NotClaimed`](crate::ErrorKind::NotClaimed) when the step was never begun, or ended
/// otherwise.
pub async fn finish_call(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    response: Option<&Value>,
) -> Result<(), Error> {
    client
        .query_typed_one(
            "SELECT idem_finish_call($1, $2, $3, $4)",
            &[
                id.parameter(),
                destination.parameter(),
                (&step, Type::TEXT),
                (&response, Type::JSONB),
            ],
        )
        .instrument(span::of_message("finish_call", id, destination))
        .await?;
    Ok(())
}

/// Takes down that it failed: `is_retryable` says that it certainly had no effect, and may be asked
/// again; otherwise it is refused for good. Of a long error the beginning is kept.
pub async fn fail_call(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
    step: &str,
    error: &str,
    is_retryable: bool,
) -> Result<(), Error> {
    let error = sql::kept(error);
    client
        .query_typed_one(
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

/// The journal of a message. Reads only, so a standby answers too.
pub async fn calls(
    client: &impl GenericClient,
    id: &MessageId,
    destination: &Destination,
) -> Result<Vec<Recorded>, Error> {
    let rows = client
        .query_typed(
            "SELECT step, state::text, attempt, begun_at, ended_at, response, error FROM idem_calls($1, $2)",
            &[id.parameter(), destination.parameter()],
        )
        .instrument(span::of_message("calls", id, destination))
        .await?;
    rows.iter().map(Recorded::try_from).collect()
}
