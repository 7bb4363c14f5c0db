//! Counts the attempts of eager and reactive handlers in the database: the transaction of the
//! handler runs under a lease.

use std::future::Future;

use deadpool_postgres::Pool;
use idem_client::{ErrorKind, lease::Lease};

use super::{
    Idem,
    engine::{self, Task},
    environment::is_environmental,
    front::Ready,
    leased::Leases,
};
use crate::lease::Keeper;
use crate::{Error, Handled, Message, Processed, Tx, connection::has_two, policy::Policy};

/// The feature that needs two connections at once.
const COUNTING: &str = "counting the attempts of a handler";

/// Checks that the pool has two connections, if the policy counts attempts.
pub(crate) fn check_counted(policy: &Policy, pool: &Pool) -> Result<(), String> {
    match policy.count_attempts {
        true => has_two(pool, COUNTING),
        false => Ok(()),
    }
}

/// Returns whether the database counts this delivery. A policy that counts attempts counts each
/// delivery that the broker does not report as the first delivery.
pub(super) fn counts(ready: &Ready) -> bool {
    let policy = ready.policy();
    let is_first = ready.message.deliveries() == Some(1);
    // The durable inbox counts attempts itself.
    let is_counted = ready.message.stored().is_some();
    policy.count_attempts && ready.id.is_some() && !is_first && !is_counted
}

impl Idem {
    /// Processes a message under a lease. The lease is committed before the transaction begins, so
    /// this attempt is counted even if it crashes the process. The transaction completes the lease
    /// in place of a claim.
    pub(super) async fn process_counted<F, Fut>(
        &self,
        pool: &Pool,
        ready: &Ready,
        handler: &F,
    ) -> Result<Processed, Error>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let work = self.work(pool, ready);
        let Some(leases) = Leases::of(pool, ready) else {
            return engine::run(&work, handler, None).await;
        };
        // The lease is renewed while the transaction holds a connection.
        has_two(pool, COUNTING).map_err(Error::Pool)?;
        let held = match leases.acquire().await? {
            Lease::Acquired(held) => held,
            other => return leases.not_acquired(other).await,
        };
        let keeper = Keeper::start(&held, pool);
        let work = Task {
            held: Some(&held),
            ..work
        };
        let processed = tokio::select! {
            biased;
            processed = engine::run(&work, handler, None) => processed,
            // A renewal that runs during the commit waits for the commit, and then fails because
            // the lease is completed. So the keeper may report a lost lease before the commit
            // returns.
            () = keeper.lost().cancelled() => return leases.not_held().await,
        };
        drop(keeper);
        let error = match processed {
            Ok(processed) => return Ok(processed),
            Err(error) => error,
        };
        match error.kind() {
            // The environment caused the error of the handler, so the attempt does not count.
            _ if matches!(error, Error::Handler(_)) && is_environmental(&error) => {
                leases.give_back(&held).await?;
                Err(error)
            }
            // The database could be reached. If the handler lost its connection in each attempt,
            // the handler is the cause.
            _ if matches!(error, Error::Handler(_)) => leases.failed_with(&held, error).await,
            // The result is unknown, or nothing can be written. The lease expires, and the next
            // attempt resolves the result.
            ErrorKind::AmbiguousCommit | ErrorKind::ConnectionLost | ErrorKind::PoolExhausted => {
                Err(error)
            }
            ErrorKind::NotClaimed => leases.not_held().await,
            // The environment caused the error, so the attempt does not count.
            _ if is_environmental(&error) => {
                leases.give_back(&held).await?;
                Err(error)
            }
            _ => leases.failed_with(&held, error).await,
        }
    }
}
