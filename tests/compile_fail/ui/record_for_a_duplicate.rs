//! Only the claim of a new message can record effects.

use tokio_postgres::Transaction;
use idem_client::{Destination, Error, MessageId, try_claim};

async fn whatever_the_outcome(
    tx: &Transaction<'_>,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    let claim = try_claim(tx, id, to).await?;
    claim.record_effects(&[]).await?;
    Ok(())
}

fn main() {
    let _ = whatever_the_outcome;
}
