//! The correct variants of the cases in `ui`. They compile, so each case fails only for the reason
//! that it states.

#![deny(unused_must_use)]

use deadpool_postgres::{Object, Pool};
use idem_client::{
    Claim, ClaimOptions, Destination, Effect, MessageId, begin_and_claim, claim, commit,
    is_claimed, try_claim, try_claim_batch, try_record,
};
use idem_runtime::{Error, Idem, Message, Settlement};
use tokio_postgres::{Client, Transaction};

/// Claims and records, in a transaction of the driver and in a transaction of idem-client.
pub async fn by_hand(
    client: &mut Client,
    id: &MessageId,
    to: &Destination,
    effects: &[Effect],
) -> Result<(), Error> {
    let tx = client.transaction().await?;
    let Claim::New(claimed) = try_claim(&tx, id, to).await? else {
        return Ok(());
    };
    claimed.record_effects(effects).await?;
    commit(tx).await?;

    let Claim::New(tx) = begin_and_claim(client, id, to).await? else {
        return Ok(());
    };
    tx.batch_execute("SELECT 1").await?;
    tx.record_and_commit(effects).await?;
    Ok(())
}

/// Claims in a savepoint.
pub async fn in_a_savepoint(
    tx: &mut Transaction<'_>,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    let savepoint = tx.transaction().await?;
    if let Claim::New(claimed) = claim(&savepoint, id, to, &ClaimOptions::default()).await? {
        claimed.record_effects(&[]).await?;
    }
    savepoint.commit().await?;
    Ok(())
}

/// Claims in a transaction of a pooled connection, and reads on the connection itself.
pub async fn on_a_pooled_connection(
    connection: &mut Object,
    id: &MessageId,
    to: &Destination,
) -> Result<bool, Error> {
    let tx = connection.transaction().await?;
    if let Claim::New(claimed) = try_claim(&tx, id, to).await? {
        claimed.record_effects(&[]).await?;
    }
    tx.commit().await.map_err(idem_client::Error::of_commit)?;
    Ok(is_claimed(connection, id, to).await?)
}

/// Claims a batch.
pub async fn many(tx: &Transaction<'_>, ids: &[MessageId], to: &Destination) -> Result<(), Error> {
    for claimed in try_claim_batch(tx, ids, to).await? {
        if let Claim::New(claimed) = claimed {
            claimed.record_effects(&[]).await?;
        }
    }
    Ok(())
}

/// Claims at the end of the business transaction.
pub async fn at_the_end(
    tx: Transaction<'_>,
    id: &MessageId,
    to: &Destination,
) -> Result<(), Error> {
    match try_record(&tx, id, to, &[]).await? {
        Claim::New(()) => Ok(commit(tx).await?),
        _ => Ok(tx.rollback().await?),
    }
}

/// Claims through [`Idem::process`].
pub async fn by_process(idem: &Idem, pool: &Pool, message: &Message) -> Settlement {
    let processed = idem.process(pool, message, |tx, _| async move {
        tx.batch_execute("SELECT 1").await?;
        Ok(vec![])
    });
    match processed.await {
        Ok(processed) => processed.settlement(),
        Err(error) => error.settlement(),
    }
}
