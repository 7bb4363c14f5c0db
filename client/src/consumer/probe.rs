//! Whether the database serves this consumer: a claim that is rolled back.

use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{Destination, Error, ErrorKind, process::Loan};

/// How long a probe waits for the server.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while the consumer works: it fetches nothing meanwhile.
const PATIENCE_AT_WORK: Duration = Duration::from_secs(1);
/// Another transaction may be the first of its destination; a claim waits for its end.
const LOCK_TIMEOUT_MS: u32 = 500;

/// Claims an id of its own and rolls back. That needs all that a claim needs: a server that takes writes, the
/// extension in a fitting version, the grant, and the functions on the `search_path`.
pub(super) async fn probe(pool: &Pool, destination: &Destination, is_paused: bool) -> Result<(), Error> {
    let patience = if is_paused { PATIENCE } else { PATIENCE_AT_WORK };
    timeout(patience, claim_and_roll_back(pool, destination))
        .await
        .unwrap_or_else(|_| Err(Error::Pool(format!("the database did not respond within {patience:?}"))))
}

async fn claim_and_roll_back(pool: &Pool, destination: &Destination) -> Result<(), Error> {
    let loan = Loan::new(pool.get().await?);
    let (id, destination) = (Uuid::new_v4(), destination.literal()?);
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; \
         SELECT idem_try_claim('{id}'::uuid, {destination}); ROLLBACK"
    );
    match loan.client().batch_execute(&sql).await.map_err(Error::from) {
        Ok(()) => {
            loan.give_back();
            Ok(())
        }
        // It would be served. The connection is in a failed transaction, and is closed.
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
        Err(error) => Err(error),
    }
}
