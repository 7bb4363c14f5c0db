//! The receipts of a consumer with a planted bug.

use futures_util::{FutureExt, future::BoxFuture};
use idem_runtime::{Delivery, Receipt, Settlement, transport::TransportError};

/// The receipt of a message that was already acknowledged. Settling it does nothing, so the message
/// is never redelivered.
struct Acknowledged;

impl Receipt for Acknowledged {
    fn settle(
        self: Box<Self>,
        _settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        async { Ok(()) }.boxed()
    }
}

/// A receipt that reports that its broker keeps rejected messages. When a message is rejected, the
/// receipt acknowledges it instead.
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

/// Acknowledges a delivery before it is handled.
pub async fn acknowledged(delivery: Delivery) -> Result<Delivery, TransportError> {
    let (message, receipt) = delivery.into_parts();
    receipt.settle(Settlement::Acknowledge).await?;
    Ok(Delivery::new(message, Acknowledged))
}

/// Changes a delivery so that the broker deletes it when it is rejected.
pub fn dropping(delivery: Delivery) -> Delivery {
    let (message, receipt) = delivery.into_parts();
    Delivery::new(message, Dropping(receipt))
}
