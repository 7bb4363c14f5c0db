//! Checks that the database can serve this consumer: all functions exist, and a claim succeeds. The
//! claim is rolled back.

use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::{Destination, ErrorKind, preflight::consumer_preflight};
use uuid::Uuid;

use crate::{
    Error,
    connection::{CHECKOUT_TIMEOUT, Checkout, at_most},
};

/// The longest time that a probe waits for the server when it has a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Replaces `PROBE_TIMEOUT` and `CHECKOUT_TIMEOUT` while the consumer works. It is short, because
/// the consumer fetches nothing during a probe.
const TIMEOUT_WHILE_WORKING: Duration = Duration::from_secs(1);
/// The lock timeout, in milliseconds, of the claim. The claim may have to wait for another
/// transaction that uses the destination for the first time.
const LOCK_TIMEOUT_MS: u32 = 500;

/// Checks the functions that the consumer may need later. Then claims a random id and rolls back.
/// The claim succeeds only on a server that accepts writes, and only if the library of the
/// extension matches its SQL.
pub(super) async fn probe(
    pool: &Pool,
    destination: &Destination,
    is_paused: bool,
) -> Result<(), Error> {
    let (to_connect, to_claim) = match is_paused {
        true => (CHECKOUT_TIMEOUT, PROBE_TIMEOUT),
        false => (TIMEOUT_WHILE_WORKING, TIMEOUT_WHILE_WORKING),
    };
    let checkout = at_most(to_connect, Checkout::take(pool)).await?;
    at_most(to_claim, consumer_preflight(&**checkout.client())).await?;
    let (id, destination) = (Uuid::new_v4(), destination.literal()?);
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; \
         SELECT idem_try_claim('{id}'::uuid, {destination}); ROLLBACK"
    );
    checkout.begins();
    match at_most(to_claim, async {
        Ok::<_, Error>(checkout.client().batch_execute(&sql).await?)
    })
    .await
    {
        Ok(()) => {
            checkout.return_to_pool();
            Ok(())
        }
        // A conflict proves that the database is available. The connection is in a failed
        // transaction, so it is closed.
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
        Err(error) => Err(error),
    }
}
