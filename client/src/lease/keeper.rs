//! Renewal in the background.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::Held;
use crate::{Error, ErrorKind, step::Step};

/// Renews a lease as long as it lives: when it is dropped, renewal stops.
#[must_use = "dropping it ends the renewal"]
#[derive(Debug)]
pub struct Keeper {
    lost: CancellationToken,
    _renewal: AbortOnDropHandle<()>,
}

impl Keeper {
    /// Cancelled when the lease is lost, or may be: it was refused, or it ran out while the
    /// database could not be asked. Stop working then: somebody else may be at it.
    ///
    /// It is not cancelled by the end of the renewal.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

impl Held {
    /// Renews it in the background, from connections of `pool`, each time that a third of it is
    /// over. It goes by this process's own time: no two clocks are compared. Drop the keeper before
    /// the lease is completed: what is completed cannot be renewed. Needs a runtime of tokio whose
    /// threads the work does not block.
    pub fn keep(&self, pool: &Pool) -> Keeper {
        let lost = CancellationToken::new();
        let renewal = tokio::spawn(renew(self.clone(), pool.clone(), lost.clone()));
        Keeper {
            lost,
            _renewal: AbortOnDropHandle::new(renewal),
        }
    }

    pub(crate) async fn extend_on(&self, pool: &Pool) -> Result<(), Error> {
        let step = Step::begin(pool).await?;
        let extended = step.run(self.extend(step.client(), self.lease())).await;
        step.end(extended)
    }
}

async fn renew(held: Held, pool: Pool, lost: CancellationToken) {
    let mut ends_at = Instant::from_std(held.ends_at());
    loop {
        // Short of the end by two thirds, however long ago it was asked for.
        sleep_until(ends_at.checked_sub(held.lease() / 3 * 2).unwrap_or(ends_at)).await;
        match extend_until(&held, &pool, ends_at).await {
            Some(new_end) => ends_at = new_end,
            None => {
                tracing::warn!(destination = %held.destination(), message_id = %held.id(), "a lease is lost");
                return lost.cancel();
            }
        }
    }
}

/// Extends it, through failures, and answers when it ends now. `None` when it is not ours any more,
/// or may not be.
async fn extend_until(held: &Held, pool: &Pool, ends_at: Instant) -> Option<Instant> {
    let pause = (held.lease() / 20).max(Duration::from_millis(1));
    loop {
        let asked_at = Instant::now();
        match timeout_at(ends_at, held.extend_on(pool)).await {
            Ok(Ok(())) => return Some(asked_at + held.lease()),
            Ok(Err(error)) if error.kind() == ErrorKind::NotClaimed => return None,
            Ok(Err(error)) => tracing::debug!(%error, "a lease is not extended yet"),
            Err(_) => return None,
        }
        sleep(pause).await;
    }
}
