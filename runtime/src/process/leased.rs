//! Runs a handler under a lease, without a transaction.

use idem_client::lease::{Held, Lease};

use super::{filters::filter_effects, leases::Leases, task::Task, work::WorkOnce};
use crate::{
    Error, Processed,
    lease::{Keeper, LeaseContext},
    policy::check_leased,
};

/// Acquires the lease, runs the handler, and completes the message with the effects. The lease is
/// renewed while the handler runs, and the handler is dropped if the lease is lost.
pub(super) async fn work_leased(
    task: &Task<'_>,
    handler: impl WorkOnce<LeaseContext>,
) -> Result<Processed, Error> {
    check_leased(task.policy).map_err(Error::Policy)?;
    // Without an id there is nothing to lease, and no identity for the journal.
    let leases = Leases::of(task).ok_or_else(|| Error::MissingId {
        destination: task.destination.to_string(),
        strategy: task.policy.id.to_string(),
    })?;
    let result = match leases.acquire().await? {
        Lease::Acquired(held) => under_lease(task, &leases, &held, handler).await,
        other => leases.not_acquired(other).await,
    };
    leases.note_end();
    result
}

async fn under_lease(
    task: &Task<'_>,
    leases: &Leases<'_>,
    held: &Held,
    handler: impl WorkOnce<LeaseContext>,
) -> Result<Processed, Error> {
    leases.note_work(held);
    let keeper = Keeper::start(held, task.pool);
    let work = async {
        let context = LeaseContext::new(held, task.pool, &keeper);
        let stored = task.message.stored();
        stored.inspect(|stored| stored.set_in_handler(true));
        let handled = handler(context, task.message.clone()).await;
        stored.inspect(|stored| stored.set_in_handler(false));
        let effects = handled?;
        filter_effects(task.settings, task.message, effects).await
    };
    let handled = tokio::select! {
        biased;
        handled = work => handled,
        () = keeper.lost().cancelled() => return Err(Error::LeaseLost),
    };
    drop(keeper);
    match handled {
        Ok(effects) => match leases.complete(held, &effects).await {
            Ok(processed) => Ok(processed),
            Err(error) => leases.not_completed(held, error).await,
        },
        Err(error) => leases.failed(held, error).await,
    }
}
