//! What becomes of a message of the inbox.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{select, time::sleep};

use super::shelf::Shelf;
use crate::{Error, ErrorKind, Receipt, Settlement, TransportError, stored::Stored};

/// The error of a message that its consumer settles with `Retry`, without an error of its own.
const RETRIED: &str = "the consumer asks for another attempt";

/// Holds the lease of one message. Dropped unsettled it is renewed no longer, and the message comes
/// again when it has run out.
pub(super) struct Ticket {
    pub(super) shelf: Arc<Shelf>,
    pub(super) stored: Stored,
}

impl Ticket {
    async fn complete(&self) -> Result<(), Error> {
        if self.stored.is_claimed() {
            return Ok(());
        }
        unless_ended(
            self.shelf
                .desk
                .complete(&self.stored.id, self.stored.token)
                .await,
        )
        .map(drop)
    }

    async fn release(&self, error: Option<&str>, is_final: bool) -> Result<Settlement, Error> {
        let Stored { id, token, .. } = &self.stored;
        let rest = unless_ended(self.shelf.desk.release(id, *token, error, is_final).await)?;
        Ok(match (rest, error) {
            (Some(Some(after)), _) => Settlement::Retry { after },
            (Some(None), Some(error)) => Settlement::reject(error),
            // Whoever has it now says what becomes of it.
            _ => Settlement::RELEASE,
        })
    }
}

/// `None`: it was claimed meanwhile, or the lease has run out and the message is another's.
fn unless_ended<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::NotClaimed => {
            tracing::debug!(%error, "a message of the inbox has ended otherwise");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Receipt for Ticket {
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
                Settlement::Release { after } if after.is_zero() => drop(self.release(None, false).await?),
                Settlement::Release { after } => {
                    // It has not failed, so it does not rest by the policy: it is held here for
                    // that time.
                    let shelf = Arc::clone(&self.shelf);
                    shelf.later.clone().spawn(async move {
                        select! {
                            () = sleep(after) => {}
                            () = shelf.is_closed.cancelled() => {}
                        }
                        if let Err(error) = self.release(None, false).await {
                            tracing::debug!(%error, "a message of the inbox comes again after its lease only");
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

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shelf
            .forget(&(self.stored.token, self.stored.id.clone()));
    }
}
