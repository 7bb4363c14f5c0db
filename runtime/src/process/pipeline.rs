//! The way of a message from its delivery to its outcome: the functions of [`Idem`].
//!
//! The steps, with the invariants of ARCHITECTURE.md that each step keeps:
//!
//! 1. [`prepare`] starts the span and the metrics. A filter may replace the message. If it stops
//!    the message, it returns a settlement, so the message is not lost (I4). Then the destination,
//!    the policy and the id are found. A message without an id is an error, unless its policy
//!    accepts it. With `Store::Memory`, the memory of this process skips duplicates. The message is
//!    not claimed in the database, so I1 holds only while this process lives, and not after an
//!    ambiguous commit.
//! 2. One of five ways:
//!    - transaction (`in_transaction.rs`): claim, handler, effects and commit, repeated after a
//!      lost conflict or connection. All of it takes effect once (I1), or nothing does (I2).
//!    - counted (`under_lease.rs`): the same under a lease, if the policy counts attempts. Messages
//!      of the inbox and first deliveries are not counted. A redelivery that crashes the process is
//!      counted, and the message becomes a dead letter when no attempt is left (I4).
//!    - leased (`under_lease.rs`): the handler runs without a transaction, and the message is
//!      completed with the token of its lease. A lost lease completes nothing (I1).
//!    - checked (`checked.rs`): the handler runs without a transaction, unless the message is
//!      claimed. Then a transaction claims it. The effects take effect once (I1, I2), the work of
//!      the handler perhaps twice.
//!    - batch (`batch.rs`): several messages in one transaction. If it fails, nothing took effect
//!      or the result is unknown (I2), and each message is processed alone: the claims show the
//!      result, and only the message that causes the failure fails.
//! 3. [`conclude`]: the memory of this process learns what is committed. A duplicate is an outcome
//!    and no error (I8): the policy may log it or pass the recorded effects to a callback (I3).
//!
//! The caller settles the message: [`Processed::settlement`], [`Error::settlement`]. No error
//! acknowledges a message (I4). The server keeps the other invariants.
//!
//! Each future may be dropped at any await. A dropped [`Session`](super::session::Session) closes
//! its connection, so the server rolls back, or commits if it has already received the COMMIT (I2).
//!
//! After an ambiguous commit, the next repetition finds out the result: it claims the message again
//! before the handler, in both styles, or extends or completes the lease again, and waits for the
//! end of the first transaction. If no repetition finds out, the error is an ambiguous commit, an
//! error of the environment, and a lease expires with its attempt counted. After an
//! ambiguous commit, a message without a claim is not repeated.

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;
use idem_client::MessageId;
use tracing::Instrument;

use super::{
    batch::process_in_groups,
    checked::work_checked,
    doubt::Doubt,
    prepare::{Ready, conclude, identify, prepare},
    processed::{ProcessResult, Processed},
    settings::Settings,
    task::Task,
    tx::Tx,
    under_lease::{process_alone, work_leased},
    work::filtered,
};
use crate::{Error, Handled, Message, lease::LeaseContext, panics::unwinding};

/// Processes messages so that each takes effect once.
///
/// Cheap to clone. One value serves a whole application.
#[derive(Clone, Debug, Default)]
pub struct Idem {
    settings: Arc<Settings>,
}

impl Idem {
    /// Creates a value with the defaults: claim before the handler, use the sender's message id,
    /// and acknowledge duplicates silently.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the id of a message according to its policy; `None` if it has no id and the policy
    /// accepts that.
    pub(crate) fn id_of(&self, message: &Message) -> Result<Option<MessageId>, Error> {
        identify(&self.settings, message).map(|(_, _, id)| id)
    }

    /// Claims the message, runs `handler`, records the effects that it returns, and commits.
    ///
    /// BEGIN and the claim share one round trip, and so do the recording of the effects and COMMIT.
    /// So this function takes no more round trips than BEGIN, the handler's own statements and
    /// COMMIT. [`Style::Reactive`](crate::policy::Style::Reactive) takes one more round trip,
    /// because its BEGIN is sent without the claim.
    ///
    /// The handler runs again after a lost conflict or connection, so its actions outside of the
    /// transaction may happen more than once. If a connection is lost during COMMIT, the claim of
    /// the next attempt shows whether the commit took effect. If no attempt is left, this function
    /// fails with [`AmbiguousCommit`](idem_client::Error::AmbiguousCommit), and the next delivery
    /// resolves the result.
    ///
    /// The future may be dropped at any time. Then either the claim, the handler's writes and the
    /// effects all take effect, or nothing does.
    ///
    /// The [policy](crate::Policies) of the destination is applied before the handler. The
    /// [filters](crate::filter::Filter) run before and after it.
    pub async fn process<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let settings = self.settings();
        // The filters of the effects run in the transaction of the handler.
        let handler = |tx, message: Message| {
            let handled = handler(tx, message.clone());
            async move { filtered(settings, &message, handled).await }
        };
        self.prepared(message, async |ready| {
            process_alone(settings, pool, ready, &handler, Doubt::default()).await
        })
        .await
    }

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
        self.prepared(message, async |ready| {
            let task = Task::of(self.settings(), pool, ready);
            let work = work_leased(&task, handler);
            work.instrument(task.span.clone()).await
        })
        .await
    }

    /// Skips the message if it was processed before, runs `handler` without a transaction, and then
    /// claims the message with its effects.
    ///
    /// No message is lost: a message is claimed only after its handler has succeeded. The effects
    /// are recorded once, with the claim. **The work of the handler is not exactly once**: the
    /// handler runs again if its process was killed before the claim. Two handlers can run for one
    /// message at the same time. Only one of them can claim the message at its end; the result of
    /// the other is a duplicate, and its effects are dropped. Use this function for work that may
    /// occasionally be done twice. [`process_leased`](Self::process_leased) excludes other
    /// processes while the handler runs, and counts attempts.
    ///
    /// Fails with [`Error::Policy`], before the handler runs, if the policy compares fingerprints
    /// or rejects expired messages. Attempts are not counted.
    pub async fn process_checked<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        self.prepared(message, async |ready| {
            let task = Task::of(self.settings(), pool, ready);
            let work = work_checked(&task, handler);
            work.instrument(task.span.clone()).await
        })
        .await
    }

    /// Processes many messages in one transaction.
    ///
    /// Returns a result for each message, in the same order. A panic of the handler, a filter, an
    /// id function or a callback is an [`Error::Handler`] of its message.
    ///
    /// One statement claims all messages. The handler then runs for one message after the other.
    /// The effects are recorded in the same round trip as COMMIT. If anything fails, everything is
    /// rolled back and the messages are processed one by one, so that only the failing message
    /// fails. In this case the handler runs again for each message. The second of two messages with
    /// the same id is a duplicate.
    ///
    /// Consecutive messages share a transaction if they have the same destination, if each has an
    /// id, and if their policy has the eager style and the database as its store. The policy must
    /// not disable waiting, compare fingerprints, expire messages, read the effects of duplicates,
    /// or count this delivery. All other messages are processed one by one.
    #[must_use = "each result contains the settlement for the broker"]
    pub async fn process_batch<F, Fut>(
        &self,
        pool: &Pool,
        messages: &[Message],
        handler: F,
    ) -> Vec<Result<Processed, Error>>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let settings = self.settings();
        // A panic of the user's code is an error of its message alone. If it unwound through this
        // function, the results of messages that are committed would be lost, and messages that
        // are not claimed would be processed twice.
        let work = &handler;
        let handler = |tx, message: Message| {
            let handled = async move {
                let handled = work(tx, message.clone());
                filtered(settings, &message, handled).await
            };
            async {
                unwinding(handled)
                    .await
                    .unwrap_or_else(|panic| Err(panic.into()))
            }
        };
        process_in_groups(settings, pool, messages, &handler).await
    }

    /// Prepares a message, takes it through a way, and concludes it.
    async fn prepared(
        &self,
        message: &Message,
        way: impl AsyncFnOnce(&Ready) -> ProcessResult,
    ) -> ProcessResult {
        match prepare(self.settings(), message).await {
            Ok(ready) => {
                // Boxed, because the compiler computes the layout of this deep future as a part of the
                // caller's future, and it has a limit for that (`recursion_limit`).
                let result = Box::pin(way(&ready)).await;
                conclude(self.settings(), ready, result).await
            }
            Err(result) => result,
        }
    }
}
