//! One step, answered once.

use std::future::Future;

use deadpool_postgres::Pool;
use futures_util::{FutureExt, TryFutureExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Begun, CallError, CallFailed, CallState, OnUnknown, Unheard, begin_call, fail_call, finish_call,
};
use crate::{
    Destination, Error, ErrorKind, MessageId, Retry,
    error::causes,
    lease::Held,
    step::{Step, again},
};

/// The journal of one message, for the calls that its handler makes. Cheap to clone.
///
/// Of a message that is leased: each step is begun under the lease, which is extended with it. So
/// who has lost it, and was paused meanwhile for example, asks nobody any more. What was answered
/// is taken down in any case, for it is true.
#[derive(Clone, Debug)]
pub struct Calls {
    pool: Pool,
    id: MessageId,
    destination: Destination,
    held: Option<Held>,
}

impl Calls {
    /// The journal of a leased message, on connections of `pool`.
    pub fn of(held: &Held, pool: &Pool) -> Self {
        Self {
            pool: pool.clone(),
            id: held.id().clone(),
            destination: held.destination().clone(),
            held: Some(held.clone()),
        }
    }

    /// The journal of any message. Who else may be at it is for the caller to know.
    pub fn new(pool: &Pool, id: &MessageId, destination: &Destination) -> Self {
        Self {
            pool: pool.clone(),
            id: id.clone(),
            destination: destination.clone(),
            held: None,
        }
    }

    /// Asks once: what was answered is recorded, and is what every later attempt gets, without
    /// asking.
    ///
    /// For another side that honours the key that `ask` is given: a step of which nobody has heard
    /// is asked again under the same key, as with [`OnUnknown::Repeat`].
    ///
    /// `request` is what the step is about, and must be the same at every attempt
    /// ([`CallFailed::Journal`] with 23000 otherwise). An error of `ask` leaves open whether it had
    /// an effect, unless it is a [`CallError`] that says more.
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

    /// As [`once`](Self::once), and `on_unknown` says what to do when an earlier attempt began this
    /// step and never heard.
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
        }
        match ask(begun.idempotency_key).await {
            Ok(response) => self.finish(step, response).await,
            Err(error) => Err(self.fail(step, error.into()).await),
        }
    }

    /// What has become of a step that nobody has heard of; `None`: it is asked.
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
            "an earlier attempt began this call and never heard"
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
        let unheard = Unheard {
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

    // The journal. What is written twice because an answer was lost is the same both times.

    async fn begin(&self, step: &str, request: &(impl Serialize + ?Sized)) -> Result<Begun, Error> {
        let request = serde_json::to_value(request).map_err(Error::Encode)?;
        again(Retry::default(), || async {
            let on = Step::begin(&self.pool).await?;
            let begin = begin_call(
                on.client(),
                &self.id,
                &self.destination,
                step,
                Some(&request),
            )
            .map_ok(Some);
            // One type of iterator: a chain of two is not `Send` to whoever spawns this without
            // knowing its lifetimes.
            let mut calls = Vec::with_capacity(2);
            if let Some(held) = &self.held {
                calls.push(
                    held.extend(on.client(), held.lease())
                        .map_ok(|()| None)
                        .boxed(),
                );
            }
            calls.push(begin.boxed());
            let begun = on.run_all(calls).await;
            on.end(begun)?
                .pop()
                .flatten()
                .ok_or_else(|| Error::Unexpected("no answer to a call that is begun".into()))
        })
        .await
        // That is the answer to the extension: what was never begun can be begun.
        .map_err(|error| match error.kind() {
            ErrorKind::NotClaimed if self.held.is_some() => Error::LeaseLost,
            _ => error,
        })
    }

    async fn finish<T: Serialize>(&self, step: &str, response: T) -> Result<T, CallFailed> {
        let body =
            serde_json::to_value(&response).map_err(|error| journal(step, Error::Encode(error)))?;
        let finished = again(Retry::default(), || async {
            let on = Step::begin(&self.pool).await?;
            let finished = on
                .run(finish_call(
                    on.client(),
                    &self.id,
                    &self.destination,
                    step,
                    Some(&body),
                ))
                .await;
            on.end(finished)
        });
        finished.await.map_err(|error| journal(step, error))?;
        Ok(response)
    }

    /// Takes down what an error says, and answers what the handler is told.
    async fn fail(&self, step: &str, error: CallError) -> CallFailed {
        let (text, is_retryable) = match &error {
            CallError::Refused(error) => (causes(&**error), false),
            CallError::NotDone(error) => (causes(&**error), true),
            CallError::Unheard(_) => return told(step, error),
        };
        let taken_down = again(Retry::default(), || async {
            let on = Step::begin(&self.pool).await?;
            let failed = fail_call(
                on.client(),
                &self.id,
                &self.destination,
                step,
                &text,
                is_retryable,
            );
            let failed = on.run(failed).await;
            on.end(failed)
        });
        match taken_down.await {
            Ok(()) => told(step, error),
            Err(error) => journal(step, error),
        }
    }
}

fn told(step: &str, error: CallError) -> CallFailed {
    let step = step.to_owned();
    match error {
        CallError::Refused(error) => CallFailed::Refused {
            step,
            error: causes(&*error),
        },
        CallError::NotDone(error) => CallFailed::NotDone { step, error },
        CallError::Unheard(error) => CallFailed::Unheard { step, error },
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
