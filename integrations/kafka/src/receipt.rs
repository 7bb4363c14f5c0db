//! The receipt of a delivery. It settles the delivery in the ledger, and the driver commits the
//! offset from there.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use idem_runtime::{Receipt, Settlement, transport::TransportError};

use super::{
    dead_letter::DeadLetters,
    driver::{Fetched, Shared},
};

/// The delay before a message is redelivered after its receipt was dropped, or after its dead
/// letter could not be published.
const UNSETTLED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The receipt of a delivery that [`hand_out`](Shared::hand_out) returned.
pub(super) struct KafkaReceipt {
    pub(super) shared: Arc<Shared>,
    pub(super) dead_letters: Arc<DeadLetters>,
    /// The delivery. `None` after the settlement.
    pub(super) fetched: Option<Fetched>,
}

impl KafkaReceipt {
    fn acknowledge(&mut self) {
        if let Some(fetched) = self.fetched.take() {
            self.shared.settle(&fetched.ticket);
        }
    }

    fn come_again(&mut self, after: Duration) {
        if let Some(fetched) = self.fetched.take() {
            self.shared.come_again(fetched, after);
        }
    }

    async fn reject(&mut self, reason: &str) -> Result<(), TransportError> {
        let Some(fetched) = &self.fetched else {
            return Ok(());
        };
        // If the partition was revoked, its new owner rejects the message too. So do not publish a
        // second dead letter here.
        if self.shared.is_current(&fetched.ticket) {
            self.dead_letters
                .take(&fetched.ticket, &fetched.record, reason)
                .await?;
        }
        self.acknowledge();
        Ok(())
    }
}

impl Receipt for KafkaReceipt {
    fn settle(
        mut self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        async move {
            match settlement {
                Settlement::Acknowledge => self.acknowledge(),
                Settlement::Retry { after } | Settlement::Release { after } => {
                    self.come_again(after)
                }
                Settlement::Reject { reason } => self.reject(&reason).await?,
            }
            Ok(())
        }
        .boxed()
    }

    fn keeps_rejected(&self) -> bool {
        self.dead_letters.are_named()
    }
}

impl Drop for KafkaReceipt {
    fn drop(&mut self) {
        // An offset that is never settled would prevent all later commits of its partition until
        // the next restart.
        self.come_again(UNSETTLED_AGAIN_AFTER);
        self.shared.hand_in();
    }
}
