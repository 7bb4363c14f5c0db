//! Processes many messages in one transaction.

use std::{future::Future, mem, sync::Arc};

use deadpool_postgres::Pool;
use idem_client::{Effect, ErrorKind, MessageId};
use tracing::Instrument;

use crate::{
    Error, Handled, Idem, Message, Processed, Tx,
    policy::{OnDuplicate, Style},
    process::{
        counted,
        engine::{self, Doubt, Task},
        front::{Prepared, Ready},
        session::Session,
    },
    telemetry,
};

/// A message and its position in the batch.
type Placed = (usize, Ready);

/// A result and the position of its message in the batch.
type Answer = (usize, Result<Processed, Error>);

impl Idem {
    /// Processes many messages in one transaction.
    ///
    /// Returns a result for each message, in the same order.
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
        let handler = |tx, message: Message| {
            let handled = handler(tx, message.clone());
            async move { self.filter_effects(&message, handled.await?).await }
        };
        let mut answers = Vec::with_capacity(messages.len());
        let mut group: Vec<Placed> = Vec::new();
        for (place, message) in messages.iter().enumerate() {
            let ready = match self.prepare(message).await {
                Ok(Prepared::Ready(ready)) => ready,
                Ok(Prepared::Done(processed)) => {
                    answers.push((place, Ok(processed)));
                    continue;
                }
                Err(error) => {
                    answers.push((place, Err(error)));
                    continue;
                }
            };
            let is_sharing = is_sharing(&ready);
            if !is_sharing
                || group
                    .last()
                    .is_some_and(|(_, last)| last.destination != ready.destination)
            {
                answers.extend(
                    self.process_group(pool, mem::take(&mut group), &handler)
                        .await,
                );
            }
            group.push((place, ready));
            if !is_sharing {
                // Process this message now: with `Store::Memory` it holds a turn until it is
                // processed, and a duplicate later in the batch would wait for that turn forever.
                answers.extend(
                    self.process_group(pool, mem::take(&mut group), &handler)
                        .await,
                );
            }
        }
        answers.extend(self.process_group(pool, group, &handler).await);
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Processes the messages of a group in one transaction. If the transaction fails, processes
    /// them one by one.
    async fn process_group<F, Fut>(
        &self,
        pool: &Pool,
        group: Vec<Placed>,
        handler: &F,
    ) -> Vec<Answer>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        if group.len() < 2 {
            return self.process_each(pool, group, handler, None).await;
        }
        let works: Vec<_> = group
            .iter()
            .map(|(_, ready)| self.work(pool, ready))
            .collect();
        let span = telemetry::of_process_batch(&group[0].1.destination, group.len());
        let doubt = match attempt(&works, handler).instrument(span).await {
            Ok(processed) => {
                let mut answers = Vec::with_capacity(group.len());
                for ((place, ready), processed) in group.into_iter().zip(processed) {
                    answers.push((place, self.conclude(ready, Ok(processed)).await));
                }
                return answers;
            }
            Err(error) => {
                telemetry::retried(works[0].destination, &error);
                tracing::debug!(
                    %error,
                    count = group.len(),
                    "a batch failed, its messages are processed one by one"
                );
                match error {
                    Error::AmbiguousCommit(cause) => Some(cause),
                    _ => None,
                }
            }
        };
        self.process_each(pool, group, handler, doubt).await
    }

    async fn process_each<F, Fut>(
        &self,
        pool: &Pool,
        group: Vec<Placed>,
        handler: &F,
        doubt: Doubt,
    ) -> Vec<Answer>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let mut answers: Vec<Answer> = Vec::with_capacity(group.len());
        for (place, ready) in group {
            let processed = match (answers.last(), &doubt) {
                // The database was not available for the previous message, after all its attempts.
                // Fail this message at once, so that it does not wait for as many attempts.
                (Some((_, Err(error))), Some(cause)) if is_away(error, &doubt) => {
                    Err(Error::AmbiguousCommit(Arc::clone(cause)))
                }
                (Some((_, Err(error))), None) if is_away(error, &doubt) => Err(Error::Pool(
                    "the message was not attempted, because the database was unavailable for the \
                     message before it"
                        .into(),
                )),
                _ if counted::counts(&ready) => self.process_counted(pool, &ready, handler).await,
                _ => engine::run(&self.work(pool, &ready), handler, doubt.clone()).await,
            };
            answers.push((place, self.conclude(ready, processed).await));
        }
        answers
    }
}

/// Returns whether a message can share its transaction with others of its destination.
fn is_sharing(ready: &Ready) -> bool {
    let policy = ready.policy();
    // The statement that claims a batch has none of these options. It runs before any effects are
    // recorded, so a duplicate in the same batch could not read the effects of the first message.
    let is_plain = policy.wait
        && !policy.fingerprint
        && !policy.expire
        && policy.on_duplicate != OnDuplicate::Effects;
    ready.id.is_some() && policy.style == Style::Eager && is_plain && !counted::counts(ready)
}

/// Returns whether the database could not be reached. An error of the handler does not count,
/// because the handler itself may be the cause.
fn is_away(error: &Error, doubt: &Doubt) -> bool {
    match error {
        Error::Pool(_) => true,
        Error::Database(_) => matches!(
            error.kind(),
            ErrorKind::ConnectionLost | ErrorKind::PoolExhausted
        ),
        Error::AmbiguousCommit(_) => doubt.is_some(),
        _ => false,
    }
}

/// Claims all messages, runs the handler for the new ones one after the other, records and commits.
/// An error applies to all messages. Everything was rolled back, unless the error is
/// [`Error::AmbiguousCommit`].
async fn attempt<F, Fut>(works: &[Task<'_>], handler: &F) -> Result<Vec<Processed>, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let Some(first) = works.first() else {
        return Ok(Vec::new());
    };
    let mut session = Session::borrow(first.pool, first.settings).await?;
    let processed = in_session(&mut session, first, works, handler).await;
    session.finish(processed.as_ref().err()).await;
    processed
}

async fn in_session<F, Fut>(
    session: &mut Session,
    first: &Task<'_>,
    works: &[Task<'_>],
    handler: &F,
) -> Result<Vec<Processed>, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let ids: Vec<MessageId> = works.iter().filter_map(|work| work.id.cloned()).collect();
    let claimed = session.begin_and_claim_batch(first, &ids).await?;
    let mut effects: Vec<(&MessageId, Vec<Effect>)> = Vec::with_capacity(works.len());
    for ((work, id), _) in works
        .iter()
        .zip(&ids)
        .zip(&claimed)
        .filter(|(_, claimed)| **claimed)
    {
        let worked = session
            .work(handler, work.message)
            .instrument(work.span.clone());
        effects.push((id, worked.await?));
    }
    if effects.is_empty() {
        return Ok(claimed.iter().map(|_| DUPLICATE).collect());
    }
    let effects: Vec<_> = effects
        .iter()
        .map(|(id, effects)| (*id, effects.as_slice()))
        .collect();
    let mut recorded = session
        .record_and_commit(first.destination, &effects)
        .await?
        .into_iter();
    let mut new = || Processed::New {
        effects: recorded.next().unwrap_or_default(),
    };
    Ok(claimed
        .iter()
        .map(|claimed| if *claimed { new() } else { DUPLICATE })
        .collect())
}

const DUPLICATE: Processed = Processed::Duplicate {
    effects: Vec::new(),
};
