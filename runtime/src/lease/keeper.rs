//! Renews leases in the background.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::{ErrorKind, lease::Held};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{Error, short_transaction::in_short_transaction};

/// Renews a lease in the background. Dropping the keeper stops the renewal.
#[must_use = "dropping it ends the renewal"]
#[derive(Debug)]
pub struct Keeper {
    lost: CancellationToken,
    _renewal: AbortOnDropHandle<()>,
}

impl Keeper {
    /// Renews the lease in the background with connections of `pool`, each time a third of its
    /// duration has passed. The time is measured by the clock of this process alone. Drop the
    /// keeper before the lease is completed, because a completed lease cannot be renewed.
    ///
    /// Requires a tokio runtime in which the work does not block all threads.
    pub fn start(held: &Held, pool: &Pool) -> Self {
        let lost = CancellationToken::new();
        let renewal = tokio::spawn(renew(held.clone(), pool.clone(), lost.clone()));
        Self {
            lost,
            _renewal: AbortOnDropHandle::new(renewal),
        }
    }

    /// Returns a token that is cancelled when the lease is lost or may be lost: the server rejected
    /// the renewal, or the lease expired while the database was unavailable. Stop working then,
    /// because another process may work on the message.
    ///
    /// Dropping the keeper does not cancel the token.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// Extends the lease in a transaction of its own.
pub(crate) async fn extend_on(held: &Held, pool: &Pool) -> Result<(), Error> {
    in_short_transaction(pool, async |client| {
        held.extend(&**client, held.lease()).await
    })
    .await
}

/// Releases the lease without a failure, in a transaction of its own.
pub(crate) async fn give_back_on(held: &Held, pool: &Pool) -> Result<(), Error> {
    in_short_transaction(pool, async |client| held.give_back(&**client).await).await
}

async fn renew(held: Held, pool: Pool, lost: CancellationToken) {
    let mut ends_at = Instant::from_std(held.ends_at());
    loop {
        // Renew when two thirds of the lease are left. The time is counted from the end of the
        // lease and not from now, because the lease began before the keeper.
        sleep_until(ends_at.checked_sub(held.lease() / 3 * 2).unwrap_or(ends_at)).await;
        match extend_until(&held, &pool, ends_at).await {
            Some(new_end) => ends_at = new_end,
            None => {
                tracing::warn!(
                    destination = %held.destination(),
                    message_id = %held.id(),
                    "a lease is lost"
                );
                return lost.cancel();
            }
        }
    }
}

/// Extends the lease, with retries after failures. Returns its new end, or `None` if the lease is
/// lost or may be lost.
async fn extend_until(held: &Held, pool: &Pool, ends_at: Instant) -> Option<Instant> {
    let pause = (held.lease() / 20).max(Duration::from_millis(1));
    loop {
        let asked_at = Instant::now();
        match timeout_at(ends_at, extend_on(held, pool)).await {
            Ok(Ok(())) => return Some(asked_at + held.lease()),
            Ok(Err(error)) if error.kind() == ErrorKind::NotClaimed => return None,
            Ok(Err(error)) => tracing::debug!(%error, "cannot extend a lease yet"),
            Err(_) => return None,
        }
        sleep(pause).await;
    }
}
