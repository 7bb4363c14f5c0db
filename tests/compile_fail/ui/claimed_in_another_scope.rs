//! A claim cannot leave the scope of its transaction.

use tokio_postgres::Client;
use idem_client::{Claim, Claimed, Destination, Error, MessageId, begin_and_claim, try_claim};

async fn returned<'c>(
    client: &'c mut Client,
    id: &MessageId,
    to: &Destination,
) -> Result<Claim<Claimed<'c>>, Error> {
    let tx = client.transaction().await?;
    try_claim(&tx, id, to).await
}

async fn kept<'c>(
    client: &'c mut Client,
    id: &MessageId,
    to: &Destination,
    keep: &mut Vec<Claimed<'c>>,
) -> Result<(), Error> {
    let tx = client.transaction().await?;
    if let Claim::New(claimed) = try_claim(&tx, id, to).await? {
        keep.push(claimed);
    }
    Ok(())
}

async fn beyond_its_own_commit(
    client: &mut Client,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    let Claim::New(tx) = begin_and_claim(client, id, to).await? else {
        return Ok(());
    };
    let claimed = tx.claim();
    tx.record_and_commit(&[]).await?;
    claimed.record_effects(&[]).await?;
    Ok(())
}

fn main() {
    let _ = (returned, kept, beyond_its_own_commit);
}
