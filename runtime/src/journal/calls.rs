//! Makes an external call once and records its result.

use std::future::Future;

use deadpool_postgres::Pool;
use idem_client::{
    Destination, ErrorKind, MessageId,
    journal::{Begun, CallState},
    lease::Held,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_postgres::error::SqlState;

use super::{CallError, CallFailed, OnUnknown, UnknownCall};
use crate::{Error, error::causes, process::caused_by_environment};

/// The journal of one message, for the external calls of its handler. Cheap to clone.
///
/// For a leased message each external call is begun under the lease, which is extended at the same
/// time. So a process that has lost the lease, for example because it was paused, makes no more
/// calls. The response of a call is recorded even after the lease is lost. A failure is recorded
/// under the lease only: the next holder of the lease may already be making the same call.
#[derive(Clone, Debug)]
pub struct Calls {
    pub(super) pool: Pool,
    pub(super) id: MessageId,
    pub(super) destination: Destination,
    pub(super) held: Option<Held>,
}

impl Calls {
    /// Creates the journal of a leased message, on connections of `pool`.
    pub fn of(held: &Held, pool: &Pool) -> Self {
        Self {
            held: Some(held.clone()),
            ..Self::new(pool, held.id(), held.destination())
        }
    }

    /// Creates the journal of any message. The caller must make sure that no other process works on
    /// the message.
    pub fn new(pool: &Pool, id: &MessageId, destination: &Destination) -> Self {
        Self {
            pool: pool.clone(),
            id: id.clone(),
            destination: destination.clone(),
            held: None,
        }
    }

    /// Makes an external call once. The result is recorded, and every later attempt returns the
    /// recorded result without a call.
    ///
    /// Use this for an external system that honours the idempotency key, which is passed to `ask`.
    /// If the result of an earlier attempt is not known, the call is repeated with the same key, as
    /// with [`OnUnknown::Repeat`].
    ///
    /// - `step`: the name of the call, 1 to 255 bytes.
    /// - `request`: the content of the call. It must be the same at every attempt; otherwise this
    ///   function fails with [`CallFailed::Journal`] (SQLSTATE 23000).
    /// - `T`: the result, which is stored as JSON. Each attempt, also the first one, gets what JSON
    ///   keeps of it. A result that cannot be stored, or that cannot be read from its JSON, is
    ///   recorded as [`CallFailed::Refused`], because the call was made and must not be repeated.
    /// - `ask`: makes the call. After an error of `ask` it is not known whether the call had an
    ///   effect, unless the error is a [`CallError`] with more information.
    pub async fn once<T, F, Fut, E>(
        &self,
        step: &str,
        request: &(impl Serialize + ?Sized),
        ask: F,
    ) -> Result<T, CallFailed>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(String) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<CallError>,
    {
        self.once_or(step, request, OnUnknown::Repeat, ask).await
    }

    /// The same as [`once`](Self::once), but `on_unknown` decides what to do when an earlier
    /// attempt began this step and its result is not known.
    pub async fn once_or<T, F, Fut, E>(
        &self,
        step: &str,
        request: &(impl Serialize + ?Sized),
        on_unknown: OnUnknown<'_, T>,
        ask: F,
    ) -> Result<T, CallFailed>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(String) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: Into<CallError>,
    {
        let begun = self
            .begin(step, request)
            .await
            .map_err(|error| journal(step, error))?;
        match begun.state {
            CallState::New => {}
            CallState::Unknown => {
                if let Some(found) = self.find_out(step, &begun, on_unknown).await? {
                    return Ok(found);
                }
            }
            CallState::Done => return read(begun.response).map_err(|error| journal(step, error)),
            CallState::Failed => {
                return Err(CallFailed::Refused {
                    step: step.into(),
                    error: begun.error.unwrap_or_default(),
                });
            }
            other => {
                let error = Error::Unexpected(format!("the state {other:?} of an external call"));
                return Err(journal(step, error));
            }
        }
        match ask(begun.idempotency_key).await {
            Ok(response) => self.finish(step, response).await,
            Err(error) => Err(self.fail(step, error.into()).await),
        }
    }

    /// Determines the result of a step that an earlier attempt began. Returns `None` if the call is
    /// to be made again.
    async fn find_out<T>(
        &self,
        step: &str,
        begun: &Begun,
        on_unknown: OnUnknown<'_, T>,
    ) -> Result<Option<T>, CallFailed>
    where
        T: Serialize + DeserializeOwned,
    {
        tracing::info!(
            step,
            destination = %self.destination,
            message_id = %self.id,
            attempt = begun.attempt,
            ?on_unknown,
            "an earlier attempt began an external call, and its result is not known"
        );
        let query = match on_unknown {
            OnUnknown::Repeat => return Ok(None),
            OnUnknown::Fail => {
                return Err(CallFailed::Unknown {
                    step: step.into(),
                    begun_at: begun.begun_at,
                });
            }
            OnUnknown::Query(query) => query,
        };
        let unheard = UnknownCall {
            idempotency_key: begun.idempotency_key.clone(),
            attempt: begun.attempt,
            begun_at: begun.begun_at,
        };
        match query(unheard).await {
            Ok(None) => Ok(None),
            Ok(Some(response)) => self.finish(step, response).await.map(Some),
            Err(error) => Err(self.fail(step, error).await),
        }
    }

    /// Records the response. Returns it as later attempts read it.
    async fn finish<T>(&self, step: &str, response: T) -> Result<T, CallFailed>
    where
        T: Serialize + DeserializeOwned,
    {
        let recorded = async {
            let body = serde_json::to_value(response).map_err(idem_client::Error::Encode)?;
            let read = read(Some(body.clone()))?;
            self.record_response(step, &body).await.map(|()| read)
        };
        match recorded.await {
            Ok(response) => Ok(response),
            // The next attempt decides with `OnUnknown` what to do.
            Err(error)
                if error.is_retryable()
                    || error.kind() == ErrorKind::NotClaimed
                    || caused_by_environment(&error)
                    || error.sqlstate() == Some(&SqlState::QUERY_CANCELED) =>
            {
                Err(journal(step, error))
            }
            // The call was made, and every attempt to record this response would fail.
            Err(error) => {
                let error = format!(
                    "the call was made, and its result cannot be stored: {}",
                    causes(&error)
                );
                let recorded = self.record_unstorable(step, &error).await;
                recorded.map_err(|error| journal(step, error))?;
                Err(CallFailed::Refused {
                    step: step.to_owned(),
                    error,
                })
            }
        }
    }

    /// Records a failure. Returns the error for the handler.
    async fn fail(&self, step: &str, error: CallError) -> CallFailed {
        let (text, is_retryable) = match &error {
            CallError::Refused(error) => (causes(&**error), false),
            CallError::NotDone(error) => (causes(&**error), true),
            CallError::Uncertain(_) => return failure(step, error),
        };
        match self.record_failure(step, &text, is_retryable).await {
            Ok(()) => failure(step, error),
            Err(error) => journal(step, error),
        }
    }
}

fn failure(step: &str, error: CallError) -> CallFailed {
    let step = step.to_owned();
    match error {
        CallError::Refused(error) => CallFailed::Refused {
            step,
            error: causes(&*error),
        },
        CallError::NotDone(error) => CallFailed::NotDone { step, error },
        CallError::Uncertain(error) => CallFailed::Uncertain { step, error },
    }
}

fn journal(step: &str, error: Error) -> CallFailed {
    CallFailed::Journal {
        step: step.to_owned(),
        error,
    }
}

fn read<T: DeserializeOwned>(response: Option<Value>) -> Result<T, Error> {
    serde_json::from_value(response.unwrap_or_default())
        .map_err(|error| Error::Decode(error.into()))
}
