//! The receipt of a message of the inbox.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::ErrorKind;
use tokio::{select, time::sleep};

use super::prefetch::Prefetch;
use crate::{Error, Receipt, Settlement, stored::Stored, transport::TransportError};

/// The error text of a message that its consumer settles with [`Settlement::Retry`], because that
/// settlement contains no error.
const RETRIED: &str = "the consumer requested a retry";

/// The receipt of one message. While the receipt exists, the lease of the message is renewed. After
/// the receipt is dropped without a settlement, the lease expires and the message is redelivered.
pub(super) struct InboxReceipt {
    pub(super) prefetch: Arc<Prefetch>,
    pub(super) stored: Stored,
}

impl InboxReceipt {
    async fn complete(&self) -> Result<(), Error> {
        if self.stored.is_claimed() {
            return Ok(());
        }
        unless_ended(self.prefetch.inbox.complete(&self.stored.held).await).map(drop)
    }

    async fn release(&self, error: Option<&str>, is_final: bool) -> Result<Settlement, Error> {
        let inbox = &self.prefetch.inbox;
        let released = inbox.release(&self.stored.held, error, is_final).await;
        let retry_after = unless_ended(released)?;
        Ok(match (retry_after, error) {
            (Some(Some(after)), _) => Settlement::Retry { after },
            (Some(None), Some(error)) => Settlement::reject(error),
            // The lease has ended, so another process settles the message.
            _ => Settlement::RELEASE,
        })
    }
}

/// Returns `None` if the message was claimed in the meantime, or if its lease expired and another
/// process may hold it.
fn unless_ended<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(error) if error.kind() == ErrorKind::NotClaimed => {
            tracing::debug!(%error, "a message of the inbox was claimed, or its lease expired");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Receipt for InboxReceipt {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        async move {
            match settlement {
                Settlement::Acknowledge => self.complete().await?,
                Settlement::Reject { reason } => drop(self.release(Some(&reason), true).await?),
                // The retry policy decides when the next attempt is due.
                Settlement::Retry { .. } => drop(self.release(Some(RETRIED), false).await?),
                Settlement::Release { after } if after.is_zero() => {
                    drop(self.release(None, false).await?)
                }
                Settlement::Release { after } => {
                    // The message has not failed, so the retry policy does not delay it. Keep its
                    // lease for the time `after`, and release it then.
                    let prefetch = Arc::clone(&self.prefetch);
                    prefetch.later.clone().spawn(async move {
                        select! {
                            () = sleep(after) => {}
                            () = prefetch.is_closed.cancelled() => {}
                        }
                        if let Err(error) = self.release(None, false).await {
                            tracing::debug!(
                                %error,
                                "cannot release a message of the inbox: \
                                 it is redelivered after its lease has expired"
                            );
                        }
                    });
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn is_in_charge(&self) -> bool {
        true
    }

    fn keeps_rejected(&self) -> bool {
        true
    }

    fn failed(
        self: Box<Self>,
        error: String,
    ) -> BoxFuture<'static, Result<Settlement, TransportError>> {
        async move { Ok(self.release(Some(&error), false).await?) }.boxed()
    }
}

impl Drop for InboxReceipt {
    fn drop(&mut self) {
        self.prefetch.forget(&self.stored.held);
    }
}
