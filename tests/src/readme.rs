//! The Rust of the README, as it stands there: a test compares the two, and runs it.

use deadpool_postgres::Pool;
use idem_client::{Delivery, Effect, Idem};
use serde::{Deserialize, Serialize};

/// What a message says.
#[derive(Deserialize, Serialize)]
pub struct Payment {
    /// Whose.
    pub account: i64,
    /// How much.
    pub amount: i64,
}

/// One delivery of a consumer.
pub async fn charge(
    idem: &Idem,
    pool: &Pool,
    delivery: Delivery,
) -> Result<(), idem_client::TransportError> {
    let processed = idem
        .process(pool, delivery.message(), |tx, message| async move {
            let payment: Payment = message.json()?;
            tx.execute(
                "UPDATE account SET paid = paid + $1 WHERE id = $2",
                &[&payment.amount, &payment.account],
            )
            .await?;
            Ok(vec![Effect::json("receipts", &payment)?])
        })
        .await?; // BEGIN travels with the claim, the effects with COMMIT: no round trip more than your transaction has
    delivery.settle(processed.settlement()).await?; // handled now, or before: only now acknowledge
    Ok(())
}
