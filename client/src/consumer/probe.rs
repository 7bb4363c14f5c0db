//! Whether the database serves this consumer: it has all functions, and a claim that is rolled back
//! succeeds.

use std::time::Duration;

use deadpool_postgres::Pool;
use uuid::Uuid;

use crate::{
    Destination, Error, ErrorKind,
    connection::{Loan, at_most},
    consumer_preflight,
};

/// How long a probe waits for a connection: the pool may try several hosts.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(60);
/// How long it waits for the server after that.
const PATIENCE: Duration = Duration::from_secs(5);
/// Both, while the consumer works: it fetches nothing meanwhile.
const PATIENCE_AT_WORK: Duration = Duration::from_secs(1);
/// Another transaction may be the first of its destination; a claim waits for its end.
const LOCK_TIMEOUT_MS: u32 = 500;

/// Looks for the functions that the consumer may call later, then claims an id of its own and rolls
/// back. The claim needs a server that takes writes and a library that serves the extension.
pub(super) async fn probe(
    pool: &Pool,
    destination: &Destination,
    is_paused: bool,
) -> Result<(), Error> {
    let (to_connect, to_claim) = match is_paused {
        true => (PATIENCE_TO_CONNECT, PATIENCE),
        false => (PATIENCE_AT_WORK, PATIENCE_AT_WORK),
    };
    let loan = at_most(to_connect, Loan::take(pool)).await?;
    at_most(to_claim, consumer_preflight(&**loan.client())).await?;
    let (id, destination) = (Uuid::new_v4(), destination.literal()?);
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; \
         SELECT idem_try_claim('{id}'::uuid, {destination}); ROLLBACK"
    );
    match at_most(to_claim, async {
        Ok(loan.client().batch_execute(&sql).await?)
    })
    .await
    {
        Ok(()) => {
            loan.give_back();
            Ok(())
        }
        // It would be served. The connection is in a failed transaction, and is closed.
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
        Err(error) => Err(error),
    }
}
