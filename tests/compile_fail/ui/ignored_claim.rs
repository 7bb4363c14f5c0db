//! The outcome of a claim must not be ignored: a duplicate would be processed again.

#![deny(unused_must_use)]

use tokio_postgres::{Client, Transaction};
use idem_client::{
    ClaimOptions, Destination, Error, MessageId, begin_and_claim, claim, try_claim,
    try_claim_batch, try_record,
};

async fn ignored(
    client: &mut Client,
    tx: &Transaction<'_>,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    try_claim(tx, id, to).await?;
    try_claim_batch(tx, std::slice::from_ref(id), to).await?;
    claim(tx, id, to, &ClaimOptions::default()).await?;
    try_record(tx, id, to, &[]).await?;
    begin_and_claim(client, id, to).await?;
    Ok(())
}

fn main() {
    let _ = ignored;
}
