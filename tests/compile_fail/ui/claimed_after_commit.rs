//! A claim cannot be used after its transaction has ended.

use tokio_postgres::Client;
use idem_client::{Claim, Destination, Error, MessageId, commit, try_claim};

async fn after_commit(client: &mut Client, id: &MessageId, to: &Destination) -> Result<(), Error> {
    let tx = client.transaction().await?;
    let Claim::New(claimed) = try_claim(&tx, id, to).await? else {
        return Ok(());
    };
    commit(tx).await?;
    claimed.record_effects(&[]).await?;
    Ok(())
}

async fn after_the_savepoint(
    client: &mut Client,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    let mut tx = client.transaction().await?;
    let savepoint = tx.transaction().await?;
    let Claim::New(claimed) = try_claim(&savepoint, id, to).await? else {
        return Ok(());
    };
    savepoint.rollback().await?;
    claimed.record_effects(&[]).await?;
    Ok(())
}

fn main() {
    let _ = (after_commit, after_the_savepoint);
}
