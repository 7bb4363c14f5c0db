//! Runs one message through its transaction, with retries, until its outcome is known.

use std::{future::Future, sync::Arc};

use backon::{BackoffBuilder, ExponentialBuilder};
use deadpool_postgres::Pool;
use idem_client::{Destination, Effect, ErrorKind, MessageId, lease::Held};
use tracing::{Instrument, Span};

use crate::lease::extend_on;
use crate::{
    Error, Handled, Message, Processed, Tx,
    policy::{OnDuplicate, Policy, Retry, Style},
    process::{Settings, claim::ClaimOutcome, session::Session},
    telemetry,
};

/// A message to process, with everything that is determined before the first query.
#[derive(Clone, Copy)]
pub(crate) struct Task<'w> {
    pub(crate) pool: &'w Pool,
    pub(crate) message: &'w Message,
    /// `None` for a plain transaction that sends its effects without a claim.
    pub(crate) id: Option<&'w MessageId>,
    pub(crate) destination: &'w Destination,
    pub(crate) policy: &'w Policy,
    pub(crate) settings: &'w Settings,
    /// The lease to complete in place of a claim, if attempts are counted.
    pub(crate) held: Option<&'w Held>,
    /// The span of the message.
    pub(crate) span: &'w Span,
}

/// The error of an earlier commit of this message, if the result of that commit is unknown. The
/// next claim shows the result.
pub(crate) type Doubt = Option<Arc<tokio_postgres::Error>>;

/// Processes one message. Retries after a failure if another attempt may succeed, as often as the
/// policy allows.
///
/// While the result of a commit is unknown, this function returns [`Error::AmbiguousCommit`] in
/// place of any later error, because a later error such as a lost connection would mean that
/// nothing took effect.
pub(crate) async fn run<F, Fut>(
    work: &Task<'_>,
    handler: &F,
    doubt: Doubt,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    attempts(work, handler, doubt)
        .instrument(work.span.clone())
        .await
}

async fn attempts<F, Fut>(
    work: &Task<'_>,
    handler: &F,
    mut doubt: Doubt,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let mut pauses = back_off(&work.policy.retry).build();
    loop {
        let error = match attempt(work, handler, &mut doubt).await {
            Ok(processed) => return Ok(processed),
            Err(error) => error,
        };
        if let Error::AmbiguousCommit(cause) = &error {
            doubt = Some(Arc::clone(cause));
        }
        // Without a claim, another attempt cannot show the result of the commit.
        let is_worth_it = error.is_retryable() && (doubt.is_none() || work.id.is_some());
        let Some(pause) = pauses.next().filter(|_| is_worth_it) else {
            return Err(doubt.map_or(error, Error::AmbiguousCommit));
        };
        telemetry::retried(work.destination, &error);
        tracing::debug!(
            %error,
            ?pause,
            destination = %work.destination,
            "processing is retried"
        );
        tokio::time::sleep(pause).await;
    }
}

/// Returns the back-off between attempts. Half of each delay grows exponentially and the other half
/// is random, so that two transactions that conflicted are not retried at the same time.
pub(crate) fn back_off(retry: &Retry) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(retry.base / 2)
        .with_max_delay(retry.cap / 2)
        .with_max_times(retry.max_attempts.saturating_sub(1) as usize)
        .with_jitter()
}

async fn attempt<F, Fut>(
    work: &Task<'_>,
    handler: &F,
    doubt: &mut Doubt,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    if let (Some(held), Some(_)) = (work.held, &doubt) {
        // The renewal waits for the transaction with the unknown result. If the renewal fails with
        // `NotClaimed`, that transaction has completed the message, or another process holds the
        // lease.
        let extended = extend_on(held, work.pool).await;
        if extended
            .as_ref()
            .err()
            .is_none_or(|error| error.kind() == ErrorKind::NotClaimed)
        {
            *doubt = None;
        }
        extended?;
    }
    let mut session = Session::borrow(work.pool, work.settings).await?;
    let processed = match (work.id, work.policy.style) {
        _ if let Some(held) = work.held => complete_last(&mut session, work, handler, held).await,
        (None, _) => unclaimed(&mut session, work, handler).await,
        // After an ambiguous commit, claim first. If the commit took effect, a handler that runs
        // before the claim would see the writes of its earlier run.
        (Some(id), Style::Reactive) if doubt.is_none() => {
            claim_last(&mut session, work, handler, id).await
        }
        (Some(id), _) => claim_first(&mut session, work, handler, id, doubt).await,
    };
    session.finish(processed.as_ref().err()).await;
    processed
}

/// The eager style: claims before the handler runs.
async fn claim_first<F, Fut>(
    session: &mut Session,
    work: &Task<'_>,
    handler: &F,
    id: &MessageId,
    doubt: &mut Doubt,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let outcome = session.begin_and_claim(work, id).await?;
    // The claim waits for every earlier claim, also for that of a transaction that lost its
    // connection during COMMIT. So the result of that commit is now known.
    if outcome != ClaimOutcome::InProgress {
        *doubt = None;
    }
    if outcome != ClaimOutcome::Claimed {
        return not_claimed(session, work, id, outcome).await;
    }
    let effects = session.work(handler, work.message).await?;
    record(session, work, id, &effects).await
}

async fn record(
    session: &mut Session,
    work: &Task<'_>,
    id: &MessageId,
    effects: &[Effect],
) -> Result<Processed, Error> {
    let recorded = session
        .record_and_commit(work.destination, &[(id, effects)])
        .await?;
    Ok(Processed::New {
        effects: recorded.into_iter().flatten().collect(),
    })
}

/// The reactive style: claims after the handler has run. Waits for the reply to BEGIN, because
/// without BEGIN each business statement would commit by itself.
async fn claim_last<F, Fut>(
    session: &mut Session,
    work: &Task<'_>,
    handler: &F,
    id: &MessageId,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    session.begin(work.policy.isolation).await?;
    let effects = session.work(handler, work.message).await?;
    let outcome = session.claim(work, id).await?;
    if outcome != ClaimOutcome::Claimed {
        return not_claimed(session, work, id, outcome).await;
    }
    record(session, work, id, &effects).await
}

/// Runs the handler, and completes the lease in place of a claim. No check for a duplicate is
/// needed, because no other process holds the lease.
async fn complete_last<F, Fut>(
    session: &mut Session,
    work: &Task<'_>,
    handler: &F,
    held: &Held,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    session.begin(work.policy.isolation).await?;
    let effects = session.work(handler, work.message).await?;
    let effects = session.complete_and_commit(held, &effects).await?;
    Ok(Processed::New { effects })
}

/// Processes the message without a claim.
async fn unclaimed<F, Fut>(
    session: &mut Session,
    work: &Task<'_>,
    handler: &F,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    session.begin(work.policy.isolation).await?;
    let effects = session.work(handler, work.message).await?;
    let effects = session.send_and_commit(&effects).await?;
    Ok(Processed::Unprotected { effects })
}

/// Returns the outcome of a message that is not processed. The transaction is still open.
async fn not_claimed(
    session: &Session,
    work: &Task<'_>,
    id: &MessageId,
    outcome: ClaimOutcome,
) -> Result<Processed, Error> {
    match outcome {
        ClaimOutcome::InProgress => Ok(Processed::InProgress),
        ClaimOutcome::Mismatch => Ok(Processed::Mismatch),
        ClaimOutcome::Expired => Ok(Processed::Expired),
        ClaimOutcome::Claimed | ClaimOutcome::Duplicate => Ok(Processed::Duplicate {
            effects: match work.policy.on_duplicate {
                OnDuplicate::Effects => session.effects(id, work.destination).await?,
                _ => Vec::new(),
            },
        }),
    }
}
