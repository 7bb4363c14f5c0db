//! Receipts of a consumer with a planted bug.

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::{Delivery, Receipt, Settlement, TransportError};

/// The message is acknowledged already: nothing brings it back.
struct Acknowledged;

impl Receipt for Acknowledged {
    fn settle(
        self: Box<Self>,
        _settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        async { Ok(()) }.boxed()
    }
}

/// Says that its broker keeps rejected messages, and has it delete them.
struct Dropping(Box<dyn Receipt>);

impl Receipt for Dropping {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        self.0.settle(match settlement {
            Settlement::Reject { .. } => Settlement::Acknowledge,
            other => other,
        })
    }

    fn keeps_rejected(&self) -> bool {
        true
    }

    fn counts_releases(&self) -> bool {
        self.0.counts_releases()
    }
}

/// The same delivery, acknowledged before anything is done.
pub async fn acknowledged(delivery: Delivery) -> Result<Delivery, TransportError> {
    let (message, receipt) = delivery.into_parts();
    receipt.settle(Settlement::Acknowledge).await?;
    Ok(Delivery::new(message, Acknowledged))
}

/// The same delivery, which is deleted when it is rejected.
pub fn dropping(delivery: Delivery) -> Delivery {
    let (message, receipt) = delivery.into_parts();
    Delivery::new(message, Dropping(receipt))
}
