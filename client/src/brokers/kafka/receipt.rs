//! How a delivery is settled: in the ledger, from where its offset is committed.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use super::{
    dead_letter::DeadLetters,
    driver::{Fetched, Shared},
};
use crate::{Receipt, Settlement, TransportError};

/// A delivery that nobody settled, or whose dead letter was not taken, comes again after this.
const UNSETTLED_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct KafkaReceipt {
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    /// Taken when it is settled.
    fetched: Option<Fetched>,
}

impl KafkaReceipt {
    /// The delivery is [handed out](Shared::hand_out).
    pub(super) fn new(
        shared: Arc<Shared>,
        dead_letters: Arc<DeadLetters>,
        fetched: Fetched,
    ) -> Self {
        Self {
            shared,
            dead_letters,
            fetched: Some(fetched),
        }
    }

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
        // Whoever has the partition now rejects it too, and one dead letter is enough.
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
        // Were it forgotten, its offset would hold up all commits until the next restart.
        self.come_again(UNSETTLED_AGAIN_AFTER);
        self.shared.hand_in();
    }
}
