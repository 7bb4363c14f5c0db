//! Processes one message under a lease: acquire, work, complete. No transaction is open while the
//! handler runs.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use deadpool_postgres::Pool;
use idem_client::{
    Destination, Effect, ErrorKind, MessageId, effects, is_claimed,
    lease::{DeadLetterContent, Held, Lease, acquire},
};
use tracing::Instrument;

use super::{
    Idem,
    engine::Doubt,
    environment::is_of_environment,
    front::{Prepared, Ready},
};
use crate::lease::Keeper;
use crate::{
    Error, Handled, HandlerError, Message, Processed,
    lease::LeaseContext,
    policy::{OnDuplicate, Policy, check_leased},
    short_transaction::{ShortTransaction, again},
    telemetry,
};

impl Idem {
    /// Leases the message, runs `handler` without a transaction, and completes the message with the
    /// effects that the handler returns.
    ///
    /// Use this function for work that cannot be done in one transaction with the claim. The lease
    /// is committed before the handler starts, and it is renewed while the handler runs. If the
    /// lease is lost, the handler is dropped and this function fails with [`Error::LeaseLost`].
    /// Actions of the handler outside of the database can happen more than once, because the
    /// progress of a killed attempt is not known. The journal, [`LeaseContext::calls`], records
    /// such actions for the next attempt. The claim and the effects take effect once, in the one
    /// transaction that completes the message.
    ///
    /// A failed attempt is counted in the database, and [`Error::Attempt`] contains the time until
    /// the next one. `idem_configure_retries` sets the number of attempts and the back-off. A
    /// message that has used up its attempts, or that failed with a terminal error, is moved to the
    /// dead letters of the database ([`Processed::Buried`]).
    ///
    /// The future may be dropped at any time: the message is redelivered after the lease has
    /// expired.
    pub async fn process_leased<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(LeaseContext, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let ready = match self.prepare(message).await? {
            Prepared::Ready(ready) => ready,
            Prepared::Done(processed) => return Ok(processed),
        };
        let span = ready.processing.span().clone();
        let processed = self
            .lease_and_work(pool, &ready, handler)
            .instrument(span)
            .await;
        self.conclude(ready, processed).await
    }

    async fn lease_and_work<F, Fut>(
        &self,
        pool: &Pool,
        ready: &Ready,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(LeaseContext, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        check_leased(ready.policy()).map_err(Error::Policy)?;
        // Without an id there is nothing to lease, and no identity for the journal.
        let leases = Leases::of(pool, ready).ok_or_else(|| Error::MissingId {
            destination: ready.destination.to_string(),
            strategy: ready.policy().id.to_string(),
        })?;
        let held = match leases.acquire().await? {
            Lease::Acquired(held) => held,
            other => return leases.not_acquired(other).await,
        };
        let keeper = Keeper::start(&held, pool);
        let work = async {
            let effects = handler(
                LeaseContext::new(&held, pool, &keeper),
                ready.message.clone(),
            )
            .await?;
            self.filter_effects(&ready.message, effects).await
        };
        let handled = tokio::select! {
            biased;
            handled = work => handled,
            () = keeper.lost().cancelled() => return Err(Error::LeaseLost),
        };
        drop(keeper);
        match handled {
            Ok(effects) => leases.complete(&held, &effects).await,
            Err(error) => leases.failed(&held, error).await,
        }
    }
}

/// Acquires, completes, releases and buries one leased message. Each step is a transaction of its
/// own.
pub(super) struct Leases<'w> {
    pool: &'w Pool,
    message: &'w Message,
    id: &'w MessageId,
    destination: &'w Destination,
    policy: &'w Policy,
}

impl<'w> Leases<'w> {
    /// Returns `None` for a message without an id.
    pub(super) fn of(pool: &'w Pool, ready: &'w Ready) -> Option<Self> {
        Some(Self {
            pool,
            message: &ready.message,
            id: ready.id.as_ref()?,
            destination: &ready.destination,
            policy: ready.policy(),
        })
    }

    /// Returns the lease under which the durable inbox delivered the message.
    fn stored(&self) -> Option<Held> {
        let stored = self
            .message
            .stored()
            .filter(|stored| stored.destination == *self.destination)?;
        let attempt = self
            .message
            .deliveries()
            .and_then(|attempt| i32::try_from(attempt).ok());
        Some(Held::new(
            self.id,
            self.destination,
            stored.token,
            attempt.unwrap_or(1),
            stored.last_error.clone(),
            self.policy.lease,
            // The source has renewed the lease until now.
            Instant::now(),
        ))
    }

    /// Acquires the lease. If the reply is lost, its token is lost too, and the retry returns
    /// [`Lease::InProgress`].
    pub(super) async fn acquire(&self) -> Result<Lease, Error> {
        if let Some(held) = self.stored() {
            return Ok(Lease::Acquired(held));
        }
        again(self.policy.retry, || async {
            let step = ShortTransaction::new(self.pool).await?;
            let lease = step.run(acquire(
                step.client(),
                self.id,
                self.destination,
                self.policy.lease,
            ));
            let lease = lease.await;
            step.end(lease)
        })
        .await
    }

    /// Returns the outcome of a message that must not be processed now: the lease was not acquired,
    /// or no attempt is left. Buries the message in the second case.
    pub(super) async fn not_acquired(&self, lease: Lease) -> Result<Processed, Error> {
        match lease {
            Lease::Duplicate => self.duplicate().await,
            Lease::InProgress { retry_after } => Ok(Processed::Leased { retry_after }),
            Lease::Dead => Ok(Processed::Dead),
            // No attempt is left here, so the server returns `Acquired` only if the retry policy
            // was changed after the release.
            Lease::Exhausted(held) | Lease::Acquired(held) => {
                let reason = held
                    .last_error()
                    .unwrap_or("the message has no attempts left");
                self.bury(&held, reason).await
            }
            other => Err(Error::Unexpected(format!("the lease {other:?}"))),
        }
    }

    async fn duplicate(&self) -> Result<Processed, Error> {
        duplicate(self.pool, self.policy, self.id, self.destination).await
    }

    /// Claims the message and records its effects.
    async fn complete(&self, held: &Held, recorded: &[Effect]) -> Result<Processed, Error> {
        let doubt: Mutex<Doubt> = Mutex::default();
        let completed = again(self.policy.retry, || async {
            let step = ShortTransaction::new(self.pool).await?;
            let completed = step.run(held.complete(step.client(), recorded)).await;
            if let Err(Error::AmbiguousCommit(cause)) = &completed {
                *doubt.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(cause));
            }
            step.end(completed)
        });
        match completed.await {
            Ok(effects) => Ok(Processed::New { effects }),
            // The retry after an ambiguous commit has waited for the row of the lease, so that
            // commit has ended and `not_held` can read its result.
            Err(error) if error.kind() == ErrorKind::NotClaimed => self.not_held().await,
            Err(error) => {
                let doubt = doubt.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(doubt.map_or(error, Error::AmbiguousCommit))
            }
        }
    }

    /// Returns the outcome of a message after its lease is lost: a duplicate if a commit without a
    /// reply has completed the message, or [`Error::LeaseLost`] if another process holds it.
    pub(super) async fn not_held(&self) -> Result<Processed, Error> {
        let is_claimed = again(self.policy.retry, || async {
            let step = ShortTransaction::new(self.pool).await?;
            let is_claimed = step
                .run(is_claimed(step.client(), self.id, self.destination))
                .await;
            step.end(is_claimed)
        });
        match is_claimed.await? {
            true => self.duplicate().await,
            false => Err(Error::LeaseLost),
        }
    }

    /// Like [`failed`](Self::failed), for an error of the handler or of the transaction.
    pub(super) async fn failed_with(&self, held: &Held, error: Error) -> Result<Processed, Error> {
        let error = match error {
            Error::Handler(error) => error,
            error if error.kind() == ErrorKind::Terminal => HandlerError::terminal(error),
            error => HandlerError::from(error),
        };
        self.failed(held, error).await
    }

    /// Counts the attempt, unless the environment caused the error. Buries the message after its
    /// last attempt or a terminal error.
    pub(super) async fn failed(
        &self,
        held: &Held,
        error: HandlerError,
    ) -> Result<Processed, Error> {
        if self.stored().is_some() {
            // The source counts the attempt when it gets the settlement.
            return Err(Error::Handler(error));
        }
        let (reason, is_terminal) = (error.to_string(), error.is_terminal());
        if is_terminal {
            return self.bury(held, &reason).await;
        }
        if is_of_environment(&error) {
            self.give_back(held).await?;
            return Err(Error::Handler(error));
        }
        let rest = again(self.policy.retry, || async {
            let step = ShortTransaction::new(self.pool).await?;
            let rest = step.run(held.release(step.client(), &reason, false)).await;
            step.end(rest)
        });
        match rest.await.map_err(lost)? {
            Some(retry_after) => {
                telemetry::retried(
                    self.destination,
                    &Error::Handler(HandlerError::from(reason.clone())),
                );
                Err(Error::Attempt { error, retry_after })
            }
            // No attempt is left. Bury the message now and not at its next delivery.
            None => {
                let lease = self.acquire().await?;
                self.not_acquired(lease).await
            }
        }
    }

    /// Releases the lease without counting the attempt.
    pub(super) async fn give_back(&self, held: &Held) -> Result<(), Error> {
        let step = ShortTransaction::new(self.pool).await?;
        let given = step.run(held.give_back(step.client())).await;
        step.end(given).map_err(lost)
    }

    async fn bury(&self, held: &Held, reason: &str) -> Result<Processed, Error> {
        let message = self.message;
        let with = DeadLetterContent::from(message);
        let buried = again(self.policy.retry, || async {
            let step = ShortTransaction::new(self.pool).await?;
            let buried = step
                .run(held.bury(step.client(), message.payload(), reason, &with))
                .await;
            step.end(buried)
        });
        match buried.await.map_err(lost) {
            Ok(()) => {
                tracing::warn!(
                    reason,
                    destination = %self.destination,
                    message_id = %self.id,
                    "a message is put into the dead letters"
                );
                Ok(Processed::Buried {
                    reason: reason.into(),
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// Converts the error of a stale token into a lost lease.
fn lost(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotClaimed => Error::LeaseLost,
        _ => error,
    }
}

/// Returns the outcome of a duplicate, with the recorded effects if the policy requests them.
pub(super) async fn duplicate(
    pool: &Pool,
    policy: &Policy,
    id: &MessageId,
    destination: &Destination,
) -> Result<Processed, Error> {
    if policy.on_duplicate != OnDuplicate::Effects {
        return Ok(Processed::Duplicate {
            effects: Vec::new(),
        });
    }
    let step = ShortTransaction::new(pool).await?;
    let recorded = step.run(effects(step.client(), id, destination)).await;
    Ok(Processed::Duplicate {
        effects: step.end(recorded)?,
    })
}
