//! The Rust of the README, as it stands there: a test compares the two, and runs it.

use idem_client::{Claim, Destination, Effect, MessageId, commit, try_claim};

/// One message of a consumer; false for a duplicate.
pub async fn charge(client: &mut tokio_postgres::Client, id: &MessageId, destination: &Destination) -> anyhow::Result<bool> {
    let tx = client.transaction().await?; // tokio-postgres, or deadpool-postgres
    let Claim::New(claimed) = try_claim(&tx, id, destination).await? else {
        return Ok(false); // a duplicate: acknowledge
    };
    tx.execute("UPDATE account SET paid = paid + 1 WHERE id = 7", &[]).await?;
    claimed
        .record_effects(&[Effect::json("receipts", &serde_json::json!({"account": 7}))?])
        .await?;
    commit(tx).await?; // only now acknowledge the message
    Ok(true)
}
