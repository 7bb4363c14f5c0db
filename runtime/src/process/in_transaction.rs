//! The way of a message in a transaction: BEGIN, claim, handler, effects, COMMIT.

use backon::BackoffBuilder;
use idem_client::sql::ClaimOutcome;
use tracing::Instrument;

use super::{
    counting,
    doubt::Doubt,
    duplicate::not_claimed,
    processed::ProcessResult,
    session::Session,
    task::{Protection, Task},
    work::Work,
};
use crate::{Processed, telemetry};

/// Repeats the transaction after a failure if another attempt may succeed, as often as the policy
/// allows.
pub(super) async fn attempts(
    task: &Task<'_>,
    handler: &impl Work,
    doubt: &mut Doubt,
) -> ProcessResult {
    let attempts = async {
        let mut pauses = None;
        loop {
            let error = match attempt(task, handler, doubt).await {
                Ok(processed) => return Ok(processed),
                Err(error) => error,
            };
            doubt.note(&error);
            // Without a claim, another attempt cannot show the result of the commit.
            let is_worth_it = error.is_retryable() && (!doubt.is_open() || task.id.is_some());
            let pauses = pauses.get_or_insert_with(|| task.policy.retry.backoff().build());
            let Some(pause) = pauses.next().filter(|_| is_worth_it) else {
                return Err(doubt.in_place_of(error));
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
    if let Some(held) = task.held.filter(|_| doubt.is_open()) {
        // Boxed, because the future of each message would otherwise have room for this case.
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
            doubt.resolve();
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
