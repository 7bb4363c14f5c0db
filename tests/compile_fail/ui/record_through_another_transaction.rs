//! Recording takes no transaction as an argument: it uses the transaction of the claim and cannot
//! use another one.

use tokio_postgres::Transaction;
use idem_client::{Claim, Destination, Error, MessageId, try_claim};

async fn through(
    tx: &Transaction<'_>,
    other: &Transaction<'_>,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    if let Claim::New(claimed) = try_claim(tx, id, to).await? {
        claimed.record_effects(other, &[]).await?;
    }
    Ok(())
}

fn main() {
    let _ = through;
}
