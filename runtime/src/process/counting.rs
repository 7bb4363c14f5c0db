//! Decides which attempts of eager and reactive handlers the database counts.

use deadpool_postgres::Pool;
use idem_client::{ErrorKind, lease::Held};

use super::{doubt::Doubt, prepare::Ready};
use crate::{Error, connection::has_two, lease::extend_on, policy::Policy};

/// The name of this feature in an error message. It needs two connections at once.
const COUNTING: &str = "counting the attempts of a handler";

/// Checks that the pool has two connections: the lease is renewed while the transaction holds a
/// connection.
pub(super) fn check_pool(pool: &Pool) -> Result<(), String> {
    has_two(pool, COUNTING)
}

/// Checks that the pool has two connections, if the policy counts attempts.
pub(crate) fn check_counted(policy: &Policy, pool: &Pool) -> Result<(), String> {
    match policy.count_attempts {
        true => check_pool(pool),
        false => Ok(()),
    }
}

/// Returns whether the database counts this delivery. A policy that counts attempts counts each
/// delivery that the broker does not report as the first delivery.
pub(super) fn counts(ready: &Ready) -> bool {
    let policy = ready.policy();
    let is_first = ready.message.deliveries() == Some(1);
    // The durable inbox counts attempts itself.
    let inbox_counts = ready.message.stored().is_some();
    policy.count_attempts && ready.id.is_some() && !is_first && !inbox_counts
}

/// Waits for the transaction with an unknown result, which may have completed the lease.
///
/// The renewal of the lease waits for that transaction. If the renewal fails with `NotClaimed`, the
/// transaction has completed the message, or another process holds the lease.
pub(super) async fn resolve(doubt: &mut Doubt, held: &Held, pool: &Pool) -> Result<(), Error> {
    let extended = extend_on(held, pool).await;
    if extended
        .as_ref()
        .err()
        .is_none_or(|error| error.kind() == ErrorKind::NotClaimed)
    {
        doubt.resolve();
    }
    extended
}
