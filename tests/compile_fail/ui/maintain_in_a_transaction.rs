//! A maintenance pass commits after each step, so it cannot run in a transaction.

use idem_client::{Error, admin};
use tokio_postgres::Transaction;

async fn in_a_transaction(tx: &Transaction<'_>) -> Result<(), Error> {
    admin::maintain(tx).await
}

fn main() {
    let _ = in_a_transaction;
}
