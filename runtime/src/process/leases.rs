//! The lease of one message: acquired before the handler runs, and completed, released or buried
//! after it. Each step is a transaction of its own.

use std::sync::{Mutex, PoisonError};

use idem_client::{
    Effect, ErrorKind, MessageId,
    lease::{Held, Lease, acquire},
};

use super::{
    doubt::Doubt,
    duplicate::{duplicate, is_claimed},
    environment::{caused_by_environment, handler_error_caused_by_environment},
    task::Task,
};
use crate::{
    Error, HandlerError, Processed, Settlement,
    lease::{Burial, InterruptedLease, NotedLease, give_back_on},
    settlement::HELD_ELSEWHERE_PAUSE,
    short_transaction::{again, in_retried_transaction, in_short_transaction},
    telemetry,
};

/// The reason of a dead letter whose attempt a consumer has interrupted.
const STOPPED: &str = "the consumer stopped while it handled this message, \
     and its broker may not redeliver it";

/// Acquires, completes, releases and buries one leased message.
pub(super) struct Leases<'t> {
    task: Task<'t>,
    id: &'t MessageId,
}

impl<'t> Leases<'t> {
    /// Returns `None` for a message without an id.
    pub(super) fn of(task: &Task<'t>) -> Option<Self> {
        Some(Self {
            task: *task,
            id: task.id?,
        })
    }

    /// Returns the lease under which the durable inbox delivered the message.
    fn stored(&self) -> Option<Held> {
        let Task {
            message,
            destination,
            policy,
            ..
        } = self.task;
        let held = &message.stored()?.held;
        if held.destination() != destination || held.id() != self.id {
            return None;
        }
        // The source has renewed the lease until now. A renewal for a shorter time would shorten
        // the lease of the source, and the lease could expire between two renewals of the source.
        Some(held.lasting(held.lease().max(policy.lease)))
    }

    /// Acquires the lease. If the reply is lost, its token is lost too, and the retry returns
    /// [`Lease::InProgress`].
    pub(super) async fn acquire(&self) -> Result<Lease, Error> {
        if let Some(held) = self.stored() {
            return Ok(Lease::Acquired(held));
        }
        let Task {
            pool,
            policy,
            destination,
            ..
        } = self.task;
        in_retried_transaction(pool, policy.retry, async |client| {
            acquire(&**client, self.id, destination, policy.lease).await
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
            Lease::Exhausted(held) => {
                let reason = held
                    .last_error()
                    .unwrap_or("the message has no attempts left");
                self.bury(&held, reason).await
            }
            other => Err(Error::Unexpected(format!("the lease {other:?}"))),
        }
    }

    async fn duplicate(&self) -> Result<Processed, Error> {
        duplicate(&self.task, self.id).await
    }

    /// Claims the message and records its effects.
    pub(super) async fn complete(
        &self,
        held: &Held,
        recorded: &[Effect],
    ) -> Result<Processed, Error> {
        let doubt: Mutex<Doubt> = Mutex::default();
        let completed = again(self.task.policy.retry, || async {
            let completed = in_short_transaction(self.task.pool, async |client| {
                held.complete(&**client, recorded).await
            });
            completed.await.inspect_err(|error| {
                let mut doubt = doubt.lock().unwrap_or_else(PoisonError::into_inner);
                doubt.note(error);
            })
        });
        match completed.await {
            Ok(effects) => Ok(Processed::New { effects }),
            // The retry after an ambiguous commit has waited for the row of the lease. So the
            // earlier commit has ended, and `not_held` can read its result.
            Err(error) if error.kind() == ErrorKind::NotClaimed => self.not_held().await,
            Err(error) => {
                let doubt = doubt.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(doubt.in_place_of(error))
            }
        }
    }

    /// Ends the lease of an attempt that has failed outside of its handler, and returns the outcome
    /// of the message. The attempt stays counted, unless the environment caused the error.
    pub(super) async fn not_completed(
        &self,
        held: &Held,
        error: Error,
    ) -> Result<Processed, Error> {
        // The source of a stored message ends its lease when it gets the settlement.
        if self.stored().is_some() || matches!(error, Error::LeaseLost) {
            return Err(error);
        }
        match error.kind() {
            // The result is unknown, so the lease is not released: it expires, the attempt stays
            // counted, and the next attempt finds out the result.
            ErrorKind::AmbiguousCommit => Err(error),
            // The database may be available again. If it is not, the lease expires and the attempt
            // stays counted. If the server was silent and has completed the message nevertheless,
            // the lease is not found.
            ErrorKind::ConnectionLost | ErrorKind::PoolExhausted => {
                if let Err(error) = self.give_back(held, &error.to_string()).await {
                    tracing::debug!(%error, "a lease is not released: its attempt stays counted");
                }
                Err(error)
            }
            ErrorKind::NotClaimed => self.not_held().await,
            // The environment caused the error, so the attempt does not count.
            _ if caused_by_environment(&error) => {
                self.give_back(held, &error.to_string()).await?;
                Err(error)
            }
            // An error that no other attempt can correct.
            _ if matches!(error.settlement(), Settlement::Reject { .. }) => {
                self.failed(held, HandlerError::terminal(error)).await
            }
            _ => self.failed(held, HandlerError::from(error)).await,
        }
    }

    /// Returns the outcome of a message after its lease is lost: a duplicate if the message is
    /// claimed, for example by a commit whose reply was lost. Otherwise fails with
    /// [`Error::LeaseLost`].
    pub(super) async fn not_held(&self) -> Result<Processed, Error> {
        match is_claimed(&self.task, self.id).await? {
            true => self.duplicate().await,
            false => Err(Error::LeaseLost),
        }
    }

    /// Ends the lease of a failed attempt. The attempt stays counted, unless the environment caused
    /// the error: then the lease is released without counting. Buries the message after its last
    /// attempt or a terminal error.
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
        if handler_error_caused_by_environment(&error) {
            self.give_back(held, &reason).await?;
            return Err(Error::Handler(error));
        }
        self.note_failure(held, &reason);
        let Task { pool, policy, .. } = self.task;
        let released = in_retried_transaction(pool, policy.retry, async |client| {
            held.release(&**client, &reason, false).await
        });
        match released.await.map_err(lost)? {
            Some(retry_after) => {
                telemetry::retried(
                    self.task.destination,
                    &Error::Handler(HandlerError::from(reason.clone())),
                );
                Err(Error::Attempt { error, retry_after })
            }
            // No attempt is left. Store the message now and not at its next delivery.
            None => match self.reject(&reason).await {
                // The message cannot be stored now, for example because another process has leased
                // another delivery of it. The next delivery stores it.
                Err(conflict) if conflict.kind() == ErrorKind::Conflict => {
                    tracing::debug!(
                        error = %conflict,
                        message_id = %self.id,
                        "a dead letter is not stored yet"
                    );
                    Err(Error::Attempt {
                        error,
                        retry_after: HELD_ELSEWHERE_PAUSE,
                    })
                }
                rejected => rejected,
            },
        }
    }

    /// Releases the lease without counting the attempt. `reason` is the error of the environment
    /// that has ended the attempt.
    async fn give_back(&self, held: &Held, reason: &str) -> Result<(), Error> {
        self.note(held, reason, true);
        give_back_on(held, self.task.pool).await.map_err(lost)
    }

    async fn bury(&self, held: &Held, reason: &str) -> Result<Processed, Error> {
        self.note_failure(held, reason);
        let burial = Burial::of(self.task.message, reason);
        let buried = again(self.task.policy.retry, || burial.bury(held, self.task.pool));
        buried.await.map_err(lost)?;
        Ok(Processed::Buried {
            reason: reason.into(),
        })
    }

    /// Stores a message without attempts, whose lease has ended, as a dead letter.
    async fn reject(&self, reason: &str) -> Result<Processed, Error> {
        let Task {
            pool, destination, ..
        } = self.task;
        let burial = Burial::of(self.task.message, reason);
        let rejected = again(self.task.policy.retry, || {
            burial.bury_unleased(self.id, destination, pool)
        });
        if rejected.await? || !is_claimed(&self.task, self.id).await? {
            return Ok(Processed::Buried {
                reason: reason.into(),
            });
        }
        self.duplicate().await
    }
}

// A consumer that stops may drop the future of an attempt at any await. It then ends the lease that
// is noted. The source of a stored message ends its lease itself.

impl Leases<'_> {
    /// Notes the lease of an attempt that runs. It is not counted if its work is rolled back when
    /// it is interrupted.
    pub(super) fn note_running(&self, held: &Held, is_rolled_back: bool) {
        self.note(held, STOPPED, is_rolled_back);
    }

    fn note_failure(&self, held: &Held, error: &str) {
        self.note(held, error, false);
    }

    fn note(&self, held: &Held, reason: &str, is_uncounted: bool) {
        if let Some(noted) = self.task.message.noted_lease()
            && self.stored().is_none()
        {
            noted.set(InterruptedLease {
                held: held.clone(),
                is_uncounted,
                burial: Burial::of(self.task.message, reason),
            });
        }
    }

    /// Notes that the attempt has ended.
    pub(super) fn note_end(&self) {
        self.task.message.noted_lease().and_then(NotedLease::take);
    }
}

/// Converts the error of a stale token into a lost lease.
fn lost(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotClaimed => Error::LeaseLost,
        _ => error,
    }
}
