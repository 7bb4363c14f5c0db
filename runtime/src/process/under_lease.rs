//! The ways of a message under a lease: the lease is committed before the work, renewed while the
//! work runs, and ended after it.
//!
//! The attempt is counted when the lease begins, so it is counted even if it crashes the process.

use std::future::Future;

use deadpool_postgres::Pool;
use idem_client::{Effect, lease::Lease};

use super::{
    counting::{check_pool, counts},
    doubt::Doubt,
    in_transaction::attempts,
    leases::Leases,
    prepare::Ready,
    processed::ProcessResult,
    settings::Settings,
    task::Task,
    work::{Work, filtered},
};
use crate::{
    Error, Handled, Message, Processed,
    lease::{Keeper, LeaseContext},
    policy::check_leased,
};

/// What runs under a lease.
#[derive(Clone, Copy, PartialEq)]
enum Under {
    /// A transaction that completes the lease. It is rolled back when it is interrupted.
    Transaction,
    /// A handler without a transaction. Its work may go on when it is interrupted, for example on a
    /// thread.
    Work,
}

/// What the work under a lease has done.
enum Worked {
    /// It has completed the message.
    Completed(Processed),
    /// It has these effects, with which the message is completed now.
    Effects(Vec<Effect>),
}

/// Runs the transaction of the handler, under a lease if the database counts the attempt.
pub(super) async fn process_alone(
    settings: &Settings,
    pool: &Pool,
    ready: &Ready,
    handler: &impl Work,
    mut doubt: Doubt,
) -> ProcessResult {
    let task = Task::of(settings, pool, ready);
    match Leases::of(&task).filter(|_| counts(ready)) {
        // Boxed, because the future of each message would otherwise have room for this way.
        Some(leases) => Box::pin(counted(&task, &leases, handler)).await,
        None => attempts(&task, handler, &mut doubt).await,
    }
}

/// Completes the lease in place of a claim.
async fn counted(task: &Task<'_>, leases: &Leases<'_>, handler: &impl Work) -> ProcessResult {
    check_pool(task.pool).map_err(Error::Pool)?;
    under_lease(task, leases, Under::Transaction, async |context| {
        let task = Task {
            held: Some(context.held()),
            ..*task
        };
        let processed = attempts(&task, handler, &mut Doubt::default()).await;
        processed.map(Worked::Completed)
    })
    .await
}

/// Runs a handler under a lease, without a transaction, and completes the message with its effects.
/// The handler is dropped if the lease is lost.
pub(super) async fn work_leased<F, Fut>(task: &Task<'_>, handler: F) -> ProcessResult
where
    F: FnOnce(LeaseContext, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    check_leased(task.policy).map_err(Error::Policy)?;
    // Without an id there is nothing to lease, and no identity for the journal.
    let leases = Leases::of(task).ok_or_else(|| Error::MissingId {
        destination: task.destination.to_string(),
        strategy: task.policy.id.to_string(),
    })?;
    under_lease(task, &leases, Under::Work, async |context| {
        let stored = task.message.stored();
        let handled = async {
            stored.inspect(|stored| stored.set_in_handler(true));
            let handled = handler(context, task.message.clone()).await;
            stored.inspect(|stored| stored.set_in_handler(false));
            handled
        };
        let effects = filtered(task.settings, task.message, handled).await;
        effects.map(Worked::Effects).map_err(Error::Handler)
    })
    .await
}

/// The frame: acquires the lease, runs the work, and ends the lease.
async fn under_lease(
    task: &Task<'_>,
    leases: &Leases<'_>,
    under: Under,
    work: impl AsyncFnOnce(LeaseContext) -> Result<Worked, Error>,
) -> ProcessResult {
    let held = match leases.acquire().await? {
        Lease::Acquired(held) => held,
        other => {
            let outcome = leases.not_acquired(other).await;
            leases.note_end();
            return outcome;
        }
    };
    leases.note_running(&held, under == Under::Transaction);
    let keeper = Keeper::start(&held, task.pool);
    let worked = tokio::select! {
        biased;
        worked = work(LeaseContext::new(&held, task.pool, &keeper)) => Some(worked),
        // A renewal that runs during the commit of a transaction waits for the commit, and then
        // fails because the lease is completed. So the keeper may report a lost lease before the
        // commit returns.
        () = keeper.lost().cancelled() => None,
    };
    drop(keeper);
    let outcome = match worked {
        Some(Ok(Worked::Completed(processed))) => Ok(processed),
        Some(Ok(Worked::Effects(effects))) => match leases.complete(&held, &effects).await {
            Err(error) => leases.not_completed(&held, error).await,
            completed => completed,
        },
        Some(Err(Error::Handler(error))) => leases.failed(&held, error).await,
        Some(Err(error)) => leases.not_completed(&held, error).await,
        None if under == Under::Transaction => leases.not_held().await,
        None => Err(Error::LeaseLost),
    };
    leases.note_end();
    outcome
}
