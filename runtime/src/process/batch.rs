//! Messages that share a transaction: the choice of the messages, the transaction, and the results.

use std::{mem, sync::Arc};

use deadpool_postgres::Pool;
use idem_client::{Effect, Error as Call, ErrorKind, MessageId};
use tracing::Instrument;

use super::{
    counting::counts,
    session::Session,
    settings::Settings,
    task::{Doubt, ProcessResult, Ready, Task},
    work::Work,
};
use crate::{
    Error, Processed,
    policy::{OnDuplicate, Style},
    telemetry,
};

/// A message and its position in the batch.
pub(super) type Placed = (usize, Ready);

/// A batch: the results until now, and the messages that will share the next transaction.
pub(super) struct Batch {
    /// The number of messages that were added.
    count: usize,
    group: Vec<Placed>,
    results: Vec<(usize, ProcessResult)>,
}

impl Batch {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            count: 0,
            group: Vec::new(),
            results: Vec::with_capacity(capacity),
        }
    }

    /// Adds a message that needs no further step.
    pub(super) fn add_done(&mut self, result: ProcessResult) {
        self.results.push((self.count, result));
        self.count += 1;
    }

    /// Adds a message. Returns the groups that must be processed now.
    pub(super) fn add(&mut self, ready: Ready) -> [Vec<Placed>; 2] {
        let shares = shares_transaction(&ready);
        let last = self.group.last().map(|(_, last)| &last.destination);
        let follows = shares && last.is_none_or(|last| *last == ready.destination);
        let before = match follows {
            true => Vec::new(),
            false => self.take_group(),
        };
        self.group.push((self.count, ready));
        self.count += 1;
        // A message that shares no transaction is processed at once: with `Store::Memory` it holds
        // a turn until it is processed, and a duplicate later in the batch would wait for that turn
        // forever.
        let alone = match shares {
            true => Vec::new(),
            false => self.take_group(),
        };
        [before, alone]
    }

    pub(super) fn take_group(&mut self) -> Vec<Placed> {
        mem::take(&mut self.group)
    }

    pub(super) fn set(&mut self, place: usize, result: ProcessResult) {
        self.results.push((place, result));
    }

    /// Returns one result for each message, in the order of the messages.
    pub(super) fn into_results(mut self) -> Vec<ProcessResult> {
        self.results.sort_by_key(|(place, _)| *place);
        self.results.into_iter().map(|(_, result)| result).collect()
    }
}

/// Returns whether a message can share its transaction with others of its destination.
fn shares_transaction(ready: &Ready) -> bool {
    let policy = ready.policy();
    // The statement that claims a batch has none of these options. It runs before any effects are
    // recorded, so a duplicate in the same batch could not read the effects of the first message.
    let is_plain = policy.wait
        && !policy.fingerprint
        && !policy.expire
        && policy.on_duplicate != OnDuplicate::Effects;
    ready.id.is_some() && policy.style == Style::Eager && is_plain && !counts(ready)
}

/// If the database was still unavailable after all attempts for the message `before`, the next
/// message is not attempted. Returns the error for that next message.
pub(super) fn skip_error(before: &ProcessResult, doubt: &Doubt) -> Option<Error> {
    let is_away = before.as_ref().is_err_and(|error| is_away(error, doubt));
    is_away.then(|| match doubt {
        Some(cause) => Call::AmbiguousCommit(Arc::clone(cause)).into(),
        None => Error::Pool(
            "the message was not attempted, because the database was unavailable for the message \
             before it"
                .into(),
        ),
    })
}

/// Returns whether the database could not be reached. An error of the handler does not count,
/// because the handler itself may be the cause.
fn is_away(error: &Error, doubt: &Doubt) -> bool {
    match error {
        Error::Pool(_) => true,
        Error::Client(Call::Database(_)) => matches!(
            error.kind(),
            ErrorKind::ConnectionLost | ErrorKind::PoolExhausted
        ),
        Error::Client(Call::AmbiguousCommit(_)) => doubt.is_some(),
        _ => false,
    }
}

/// Claims all messages, runs the handler for the new ones one after the other, records and commits.
/// An error applies to all messages. Nothing is claimed after an error, unless the error is
/// [`Call::AmbiguousCommit`]: then either everything was committed or nothing.
pub(super) async fn batch_transaction(
    settings: &Settings,
    pool: &Pool,
    group: &[Placed],
    handler: &impl Work,
) -> Result<Vec<Processed>, Error> {
    let tasks: Vec<_> = group
        .iter()
        .map(|(_, ready)| Task::of(settings, pool, ready))
        .collect();
    let Some(first) = tasks.first() else {
        return Ok(Vec::new());
    };
    let span = telemetry::of_process_batch(first.destination, tasks.len());
    let attempt = async {
        let mut session = Session::borrow(pool, settings).await?;
        let processed = in_session(&mut session, first, &tasks, handler).await;
        session.finish(processed).await
    };
    let processed = attempt.instrument(span).await;
    if let Err(error) = &processed {
        telemetry::retried(first.destination, error);
        tracing::debug!(
            %error,
            count = tasks.len(),
            "a batch failed, its messages are processed one by one"
        );
    }
    processed
}

async fn in_session(
    session: &mut Session,
    first: &Task<'_>,
    tasks: &[Task<'_>],
    handler: &impl Work,
) -> Result<Vec<Processed>, Error> {
    let ids: Vec<MessageId> = tasks.iter().filter_map(|task| task.id.cloned()).collect();
    let claimed = session.begin_and_claim_batch(first, &ids).await?;
    let mut effects: Vec<(&MessageId, Vec<Effect>)> = Vec::with_capacity(tasks.len());
    for ((task, id), _) in tasks
        .iter()
        .zip(&ids)
        .zip(&claimed)
        .filter(|(_, claimed)| **claimed)
    {
        let worked = async {
            match effects.is_empty() {
                true => session.work(handler, task.message).await,
                false => session.work_next(handler, task.message).await,
            }
        };
        let worked = worked.instrument(task.span.clone()).await?;
        effects.push((id, worked));
    }
    if effects.is_empty() {
        return Ok(claimed.iter().map(|_| Processed::duplicate()).collect());
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
        .map(|claimed| match claimed {
            true => new(),
            false => Processed::duplicate(),
        })
        .collect())
}
