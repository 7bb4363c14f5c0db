//! Recording names no transaction: it goes through the one of the claim, and there is no way to
//! give another.

use idem_client::{Claim, Destination, Error, MessageId, try_claim};
use tokio_postgres::Transaction;

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
