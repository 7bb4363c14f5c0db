//! The way of a message from its delivery to its outcome. Read this file from top to bottom.
//!
//! The steps, with the invariants of ARCHITECTURE.md that each step keeps:
//!
//! 1. [`Processing::begin`] starts the span and the metrics.
//! 2. [`filter_message`]: a filter may replace the message. If it stops the message, it returns a
//!    settlement, so the message is not lost (I4).
//! 3. [`identify`] finds destination, policy and id. A message without an id is an error, unless
//!    its policy accepts it.
//! 4. [`recall`], with `Store::Memory`, looks into the memory of this process and skips duplicates.
//!    The message is not claimed in the database, so I1 holds only while this process lives, and
//!    not after an ambiguous commit.
//! 5. One of these alternatives:
//!    - transaction: [`attempts`] repeats a [`transaction`] of claim, handler, effects and commit.
//!      All of it takes effect once (I1), or nothing does (I2).
//!    - [`counted`]: the same under a lease, if the policy counts attempts. Messages of the inbox
//!      and first deliveries are not counted. The lease is committed before the transaction, so a
//!      redelivery that crashes the process is counted, and the message becomes a dead letter when
//!      no attempt is left (I4).
//!    - leased: [`work_leased`] runs the handler without a transaction, and completes the message
//!      with the token of its lease. A lost lease completes nothing (I1).
//!    - checked: the handler runs without a transaction, unless the message is claimed.
//!      [`recorded`] claims it. The effects take effect once (I1, I2), the work of the handler
//!      perhaps twice.
//!    - batch: [`batch_transaction`] processes several messages. If it fails, nothing took effect
//!      or the result is unknown (I2), and each message is processed alone: the claims show the
//!      result, and only the message that causes the failure fails.
//! 6. [`remember`]: with `Store::Memory`, the memory of this process learns what is committed.
//! 7. [`after_duplicate`]: a duplicate is an outcome and no error (I8). The policy may log it or
//!    pass the recorded effects to a callback (I3).
//! 8. [`Processing::end`] records the outcome.
//!
//! The caller settles the message: [`Processed::settlement`], [`Error::settlement`]. No error
//! acknowledges a message (I4). The server keeps the other invariants.
//!
//! Each future may be dropped at any await. A dropped [`Session`] closes its connection, so the
//! server rolls back, or commits if it has already received the COMMIT (I2).
//!
//! The other files of this folder have the details of the steps. None of them uses this file.

use std::sync::Arc;

use backon::BackoffBuilder;
use deadpool_postgres::Pool;
use idem_client::{
    Effect, Error as Call,
    lease::{Held, Lease},
};
use tracing::Instrument;

use super::{
    batch::{Batch, Placed, batch_transaction, skip_error},
    claim::ClaimOutcome,
    counting,
    duplicate::{after_duplicate, duplicate, is_claimed, not_claimed},
    filters::{filter_effects, filter_message},
    identify::identify,
    leased::work_leased,
    leases::Leases,
    recall::{recall, remember},
    session::Session,
    settings::Settings,
    task::{Doubt, Prepared, ProcessResult, Protection, Ready, Task},
    tx::Tx,
    work::{Work, WorkOnce},
};
use crate::{
    Error, Message, Processed,
    lease::{Keeper, LeaseContext},
    panics::{Panicked, unwinding},
    policy::check_checked,
    telemetry::{self, Processing},
};

/// Takes messages through all steps.
#[derive(Clone, Copy)]
pub(super) struct Pipeline<'p> {
    pub(super) settings: &'p Settings,
    pub(super) pool: &'p Pool,
}

// The entry points.

impl Pipeline<'_> {
    /// The handler works in the transaction that claims the message.
    pub(super) async fn process(self, message: &Message, handler: &impl Work) -> ProcessResult {
        let ready = match self.prepare(message).await {
            Prepared::Ready(ready) => ready,
            Prepared::Done(result) => return result,
        };
        // The filters of the effects run in the transaction of the handler.
        let handler = |tx, message: Message| {
            let handled = handler(tx, message.clone());
            async move { filter_effects(self.settings, &message, handled.await?).await }
        };
        let result = self.alone(&ready, &handler, None).await;
        self.conclude(ready, result).await
    }

    /// The handler works under a lease, without a transaction.
    pub(super) async fn process_leased(
        self,
        message: &Message,
        handler: impl WorkOnce<LeaseContext>,
    ) -> ProcessResult {
        let ready = match self.prepare(message).await {
            Prepared::Ready(ready) => ready,
            Prepared::Done(result) => return result,
        };
        let task = Task::of(self.settings, self.pool, &ready);
        let work = work_leased(&task, handler);
        let result = work.instrument(task.span.clone()).await;
        self.conclude(ready, result).await
    }

    /// The handler works with neither a lease nor a transaction.
    pub(super) async fn process_checked(
        self,
        message: &Message,
        handler: impl WorkOnce<()>,
    ) -> ProcessResult {
        let ready = match self.prepare(message).await {
            Prepared::Ready(ready) => ready,
            Prepared::Done(result) => return result,
        };
        let task = Task::of(self.settings, self.pool, &ready);
        let work = async {
            if let Some(id) = task.id {
                check_checked(task.policy).map_err(Error::Policy)?;
                if is_claimed(&task, id).await? {
                    return duplicate(&task, id).await;
                }
            }
            let handled = async {
                let effects = handler((), task.message.clone()).await?;
                filter_effects(self.settings, task.message, effects).await
            };
            recorded(&task, handled.await.map_err(Error::Handler)?).await
        };
        let result = work.instrument(task.span.clone()).await;
        self.conclude(ready, result).await
    }

    /// The handler works in a transaction that claims several messages.
    ///
    /// A panic of the user's code is an error of its message alone. If it unwound through this
    /// function, the results of messages that are committed would be lost, and messages that are
    /// not claimed would be processed twice.
    pub(super) async fn process_batch(
        self,
        messages: &[Message],
        handler: &impl Work,
    ) -> Vec<ProcessResult> {
        let handler = |tx, message: Message| {
            let handled = async move {
                let effects = handler(tx, message.clone()).await?;
                filter_effects(self.settings, &message, effects).await
            };
            async {
                unwinding(handled)
                    .await
                    .unwrap_or_else(|panic| Err(panic.into()))
            }
        };
        let mut batch = Batch::new(messages.len());
        for message in messages {
            let prepared = unwinding(self.prepare(message)).await;
            match prepared.unwrap_or_else(|panic| Prepared::Done(Err(panicked(panic)))) {
                Prepared::Done(result) => batch.add_done(result),
                Prepared::Ready(ready) => {
                    for group in batch.add(ready) {
                        self.shared(group, &handler, &mut batch).await;
                    }
                }
            }
        }
        self.shared(batch.take_group(), &handler, &mut batch).await;
        batch.into_results()
    }
}

// The steps.

impl Pipeline<'_> {
    /// Steps 1 to 4. idem sends no statement in these steps. Filters and callbacks of the user may
    /// send statements.
    async fn prepare(self, message: &Message) -> Prepared {
        let processing = Processing::begin(message);
        let span = processing.span().clone();
        let filtered = filter_message(self.settings, message).instrument(span);
        let message = match filtered.await {
            Ok(message) => message,
            Err(settlement) => {
                return Prepared::Done(processing.end(Ok(Processed::Stopped { settlement })));
            }
        };
        let mut ready = match identify(self.settings, &message) {
            Ok((destination, entry, id)) => Ready {
                message,
                destination,
                entry,
                id,
                turn: None,
                processing,
            },
            Err(error) => return Prepared::Done(processing.end(Err(error))),
        };
        let Some(processed) = recall(&mut ready).await else {
            return Prepared::Ready(ready);
        };
        let concluded = after_duplicate(self.settings, &ready, &processed).await;
        Prepared::Done(ready.processing.end(concluded.map(|()| processed)))
    }

    /// Steps 6 to 8. If the result is `New` or `Unprotected`, its transaction is committed.
    async fn conclude(self, mut ready: Ready, result: ProcessResult) -> ProcessResult {
        let span = ready.processing.span().clone();
        let concluded = async {
            let processed = remember(&mut ready, result?);
            after_duplicate(self.settings, &ready, &processed).await?;
            Ok(processed)
        };
        let result = concluded.instrument(span).await;
        ready.processing.end(result)
    }

    /// Like [`conclude`](Self::conclude). A panic of a callback is an error of the message.
    async fn conclude_caught(self, ready: Ready, result: ProcessResult) -> ProcessResult {
        unwinding(self.conclude(ready, result))
            .await
            .unwrap_or_else(|panic| Err(panicked(panic)))
    }

    /// Step 5 for one message.
    async fn alone(self, ready: &Ready, handler: &impl Work, doubt: Doubt) -> ProcessResult {
        let task = Task::of(self.settings, self.pool, ready);
        match Leases::of(&task).filter(|_| counting::counts(ready)) {
            // Boxed, because the future of each message would otherwise have room for this way.
            Some(leases) => Box::pin(counted(&task, &leases, handler)).await,
            None => attempts(&task, handler, doubt).await,
        }
    }

    /// Steps 5 to 8 for the messages of a group, in one transaction. If it fails, the messages are
    /// processed one by one.
    async fn shared(self, group: Vec<Placed>, handler: &impl Work, batch: &mut Batch) {
        let mut doubt = None;
        if group.len() > 1 {
            match batch_transaction(self.settings, self.pool, &group, handler).await {
                Ok(processed) => {
                    for ((place, ready), processed) in group.into_iter().zip(processed) {
                        batch.set(place, self.conclude_caught(ready, Ok(processed)).await);
                    }
                    return;
                }
                Err(Error::Client(Call::AmbiguousCommit(cause))) => doubt = Some(cause),
                Err(_) => {}
            }
        }
        let mut skipped = None;
        for (place, ready) in group {
            let result = match skipped.take() {
                Some(error) => Err(error),
                None => self.alone(&ready, handler, doubt.clone()).await,
            };
            let result = self.conclude_caught(ready, result).await;
            skipped = skip_error(&result, &doubt);
            batch.set(place, result);
        }
    }
}

// The alternatives of step 5.

/// Repeats the transaction after a failure if another attempt may succeed, as often as the policy
/// allows.
///
/// While the result of a commit is unknown, this function returns [`Call::AmbiguousCommit`] in
/// place of any later error, because a later error such as a lost connection would mean that
/// nothing took effect.
async fn attempts(task: &Task<'_>, handler: &impl Work, doubt: Doubt) -> ProcessResult {
    attempts_noting(task, handler, doubt, &mut false).await
}

/// Like [`attempts`]. Sets `was_ambiguous` if the commit of an attempt had an unknown result.
async fn attempts_noting(
    task: &Task<'_>,
    handler: &impl Work,
    mut doubt: Doubt,
    was_ambiguous: &mut bool,
) -> ProcessResult {
    let attempts = async {
        let mut pauses = None;
        loop {
            let error = match attempt(task, handler, &mut doubt).await {
                Ok(processed) => return Ok(processed),
                Err(error) => error,
            };
            if let Error::Client(Call::AmbiguousCommit(cause)) = &error {
                doubt = Some(Arc::clone(cause));
                *was_ambiguous = true;
            }
            // Without a claim, another attempt cannot show the result of the commit.
            let is_worth_it = error.is_retryable() && (doubt.is_none() || task.id.is_some());
            let pauses = pauses.get_or_insert_with(|| task.policy.retry.back_off().build());
            let Some(pause) = pauses.next().filter(|_| is_worth_it) else {
                return Err(doubt.map_or(error, |cause| Call::AmbiguousCommit(cause).into()));
            };
            telemetry::retried(task.destination, &error);
            tracing::debug!(
                %error,
                ?pause,
                destination = %task.destination,
                "processing is retried"
            );
            tokio::time::sleep(pause).await;
        }
    };
    attempts.instrument(task.span.clone()).await
}

/// One attempt, on a connection of its own.
async fn attempt(task: &Task<'_>, handler: &impl Work, doubt: &mut Doubt) -> ProcessResult {
    if let (Some(held), Some(_)) = (task.held, &doubt) {
        // Boxed for the same reason as `counted`.
        Box::pin(counting::resolve(doubt, held, task.pool)).await?;
    }
    let mut session = Session::borrow(task.pool, task.settings).await?;
    let result = transaction(&mut session, task, handler, doubt).await;
    session.finish(result).await
}

/// BEGIN, claim, handler, effects, COMMIT. BEGIN and an eager claim share a round trip, and so do
/// the effects and COMMIT. If this function returns before the COMMIT, the transaction is still
/// open, and [`Session::finish`] rolls it back.
async fn transaction(
    session: &mut Session,
    task: &Task<'_>,
    handler: &impl Work,
    doubt: &mut Doubt,
) -> ProcessResult {
    let protection = Protection::of(task, doubt);
    if let Protection::ClaimFirst(id) = protection {
        let outcome = session.begin_and_claim(task, id).await?;
        // The claim waits for every earlier claim, also for that of a transaction that lost its
        // connection during COMMIT. So the result of that commit is now known.
        if outcome != ClaimOutcome::InProgress {
            *doubt = None;
        }
        if outcome != ClaimOutcome::Claimed {
            return not_claimed(session, task, id, outcome).await;
        }
    } else {
        // Wait for the reply, because without BEGIN each statement would commit by itself.
        session.begin(task.policy.isolation).await?;
    }
    let effects = session.work(handler, task.message).await?;
    if let Protection::ClaimLast(id) = protection {
        let outcome = session.claim(task, id).await?;
        if outcome != ClaimOutcome::Claimed {
            return not_claimed(session, task, id, outcome).await;
        }
    }
    match protection {
        Protection::ClaimFirst(id) | Protection::ClaimLast(id) => {
            let effects = [(id, effects.as_slice())];
            let recorded = session
                .record_and_commit(task.destination, &effects)
                .await?;
            Ok(Processed::New {
                effects: recorded.into_iter().flatten().collect(),
            })
        }
        Protection::Lease(held) => Ok(Processed::New {
            effects: session.complete_and_commit(held, &effects).await?,
        }),
        Protection::None => Ok(Processed::Unprotected {
            effects: session.send_and_commit(&effects).await?,
        }),
    }
}

/// Takes a lease, and completes it in place of a claim. The lease is committed before the
/// transaction begins, so the attempt is counted even if it crashes the process.
async fn counted(task: &Task<'_>, leases: &Leases<'_>, handler: &impl Work) -> ProcessResult {
    counting::check_pool(task.pool).map_err(Error::Pool)?;
    let result = match leases.acquire().await? {
        Lease::Acquired(held) => under_lease(task, leases, &held, handler).await,
        other => leases.not_acquired(other).await,
    };
    leases.note_end();
    result
}

async fn under_lease(
    task: &Task<'_>,
    leases: &Leases<'_>,
    held: &Held,
    handler: &impl Work,
) -> ProcessResult {
    leases.note_transaction(held);
    let keeper = Keeper::start(held, task.pool);
    let task = Task {
        held: Some(held),
        ..*task
    };
    let result = tokio::select! {
        biased;
        result = attempts(&task, handler, None) => result,
        // A renewal that runs during the commit waits for the commit, and then fails because the
        // lease is completed. So the keeper may report a lost lease before the commit returns.
        () = keeper.lost().cancelled() => return leases.not_held().await,
    };
    drop(keeper);
    match result {
        Ok(processed) => Ok(processed),
        Err(error) => counting::end_failed_attempt(leases, held, error).await,
    }
}

/// Claims the message and records its effects in a transaction of its own, after the handler has
/// succeeded without one.
async fn recorded(task: &Task<'_>, effects: Vec<Effect>) -> ProcessResult {
    // The work is done, so the handler of this transaction only returns the effects.
    let handler = |tx: Tx, _: Message| {
        drop(tx);
        let effects = effects.clone();
        async { Ok(effects) }
    };
    let mut was_ambiguous = false;
    let result = attempts_noting(task, &handler, None, &mut was_ambiguous).await;
    // After an ambiguous commit, this function itself may have committed the claim.
    if matches!(result, Ok(Processed::Duplicate { .. })) && !was_ambiguous {
        tracing::warn!(
            destination = %task.destination,
            "another process handled this message while its handler ran here"
        );
    }
    result
}

/// Returns the error of a message whose filter, id function or callback has panicked.
fn panicked(panic: Panicked) -> Error {
    Error::Handler(panic.into())
}
