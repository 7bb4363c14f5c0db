//! The Rust example of the README. A test compares this code with the README and runs it.

use deadpool_postgres::Pool;
use idem_client::Effect;
use idem_runtime::{Delivery, Idem};
use serde::{Deserialize, Serialize};

/// The payload of a message.
#[derive(Deserialize, Serialize)]
pub struct Payment {
    /// The id of the account.
    pub account: i64,
    /// The amount that was paid.
    pub amount: i64,
}

/// Processes one delivery and settles it.
pub async fn charge(
    idem: &Idem,
    pool: &Pool,
    delivery: Delivery,
) -> Result<(), idem_runtime::transport::TransportError> {
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
        .await?; // BEGIN is sent with the claim, effects with COMMIT: no extra round trips
    delivery.settle(processed.settlement()).await?; // acknowledges what was handled now or before
    Ok(())
}
