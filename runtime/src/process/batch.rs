//! Messages that share a transaction: the choice of the messages, the transaction, and the results.
//!
//! They are claimed in one statement. The handlers run one after the other, and all effects are
//! recorded with the COMMIT. Before each handler but the first, one statement checks that the
//! functions of idem can still be called, without a round trip of its own. So a batch fails if a
//! handler has left it with another role or `search_path`, or with a failed statement behind a
//! savepoint. A savepoint that a successful handler has left open is not detected: a later handler
//! that rolls back to it undoes the work of the earlier one.

use std::mem;

use deadpool_postgres::Pool;
use idem_client::{Effect, Error as Call, ErrorKind, MessageId};
use tracing::Instrument;

use super::{
    counting::counts,
    doubt::Doubt,
    prepare::{Ready, conclude_caught, prepare_caught},
    processed::ProcessResult,
    session::Session,
    settings::Settings,
    task::Task,
    under_lease::process_alone,
    work::Work,
};
use crate::{
    Error, Message, Processed,
    policy::{OnDuplicate, Style},
    telemetry,
};

/// A message and its position in the batch.
type Placed = (usize, Ready);

/// The results of a batch until now, with the positions of their messages.
type Results = Vec<(usize, ProcessResult)>;

/// Processes messages, as many in one transaction as possible. Returns one result for each message,
/// in the order of the messages.
pub(super) async fn process_in_groups(
    settings: &Settings,
    pool: &Pool,
    messages: &[Message],
    handler: &impl Work,
) -> Vec<ProcessResult> {
    let mut results: Results = Vec::with_capacity(messages.len());
    // The messages that will share the next transaction.
    let mut group: Vec<Placed> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        let ready = match prepare_caught(settings, message).await {
            Ok(ready) => ready,
            Err(result) => {
                results.push((place, result));
                continue;
            }
        };
        let shares = shares_transaction(&ready);
        let last = group.last().map(|(_, last)| &last.destination);
        if !shares || last.is_some_and(|last| *last != ready.destination) {
            process_group(settings, pool, mem::take(&mut group), handler, &mut results).await;
        }
        group.push((place, ready));
        // A message that shares no transaction is processed at once: with `Store::Memory` it holds
        // a turn until it is processed, and a duplicate later in the batch would wait for that turn
        // forever.
        if !shares {
            process_group(settings, pool, mem::take(&mut group), handler, &mut results).await;
        }
    }
    process_group(settings, pool, group, handler, &mut results).await;
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Processes the messages of a group in one transaction. If it fails, they are processed one by
/// one.
async fn process_group(
    settings: &Settings,
    pool: &Pool,
    group: Vec<Placed>,
    handler: &impl Work,
    results: &mut Results,
) {
    let mut doubt = Doubt::default();
    if group.len() > 1 {
        match batch_transaction(settings, pool, &group, handler).await {
            Ok(processed) => {
                for ((place, ready), processed) in group.into_iter().zip(processed) {
                    let result = conclude_caught(settings, ready, Ok(processed)).await;
                    results.push((place, result));
                }
                return;
            }
            Err(error) => doubt.note(&error),
        }
    }
    let mut skipped = None;
    for (place, ready) in group {
        let result = match skipped.take() {
            Some(error) => Err(error),
            None => process_alone(settings, pool, &ready, handler, doubt.clone()).await,
        };
        let result = conclude_caught(settings, ready, result).await;
        skipped = skip_error(&result, &doubt);
        results.push((place, result));
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
fn skip_error(before: &ProcessResult, doubt: &Doubt) -> Option<Error> {
    let is_away = before.as_ref().is_err_and(|error| is_away(error, doubt));
    is_away.then(|| {
        doubt.in_place_of(Error::Pool(
            "the message was not attempted, because the database was unavailable for the message \
             before it"
                .into(),
        ))
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
        Error::Client(Call::AmbiguousCommit(_)) => doubt.is_open(),
        _ => false,
    }
}

/// Claims all messages, runs the handler for the new ones one after the other, records and commits.
/// An error applies to all messages. Nothing is claimed after an error, unless the error is
/// [`Call::AmbiguousCommit`]: then either everything was committed or nothing.
async fn batch_transaction(
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
