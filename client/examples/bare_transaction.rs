//! Claims messages in a transaction of a pooled connection. The feature `deadpool` makes the
//! connections and transactions of deadpool executors, so all functions accept them.
//!
//! Start it with the connection string of a database that has the extension:
//!
//! ```sh
//! cargo run -p idem-client --features deadpool --example bare_transaction -- \
//!     "host=/run/postgresql user=postgres"
//! ```

use std::env;

use deadpool_postgres::{Config, Runtime};
use idem_client::{Destination, Effect, Error, MessageId, begin_and_claim, effects, try_claim};
use serde_json::json;
use tokio_postgres::NoTls;
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::args()
        .nth(1)
        .ok_or("required argument: a connection string")?;
    let pool = Config {
        url: Some(url),
        ..Config::default()
    }
    .create_pool(Some(Runtime::Tokio1), NoTls)?;
    let destination = Destination::new("example.bare-transaction")?;
    let fact = Effect::json("example.facts", &json!({"seen": true}))?;

    // Claim a message in a transaction of a pooled connection.
    let id = MessageId::from(Uuid::new_v4());
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let claim = try_claim(&tx, &id, &destination)
        .await?
        .into_new()
        .ok_or("a new id cannot be a duplicate")?;
    let ids = claim.record_effects(std::slice::from_ref(&fact)).await?;
    tx.commit().await.map_err(Error::of_commit)?;
    println!("recorded {ids:?}");

    // A duplicate finds the recorded effects.
    let tx = connection.transaction().await?;
    assert!(try_claim(&tx, &id, &destination).await?.is_duplicate());
    let recorded = effects(&tx, &id, &destination).await?;
    assert!(recorded.iter().map(|effect| effect.message_id).eq(ids));
    tx.rollback().await?;

    // Claim, record the effects and commit in two round trips.
    let claimed = begin_and_claim(
        &mut connection,
        &MessageId::from(Uuid::new_v4()),
        &destination,
    )
    .await?
    .into_new()
    .ok_or("a new id cannot be a duplicate")?;
    println!("recorded {:?}", claimed.record_and_commit(&[fact]).await?);
    Ok(())
}
