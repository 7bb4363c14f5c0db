//! Processes messages of a handler with neither a transaction nor a lease: checks for a duplicate
//! first, and claims the message after the handler has succeeded.

use std::future::Future;

use deadpool_postgres::Pool;
use idem_client::is_claimed;
use tracing::Instrument;

use super::{
    Idem, engine,
    front::{Prepared, Ready},
    leased::duplicate,
};
use crate::{
    Error, Handled, Message, Processed, Tx,
    policy::check_checked,
    short_transaction::{ShortTransaction, again},
};

impl Idem {
    /// Skips the message if it was processed before, runs `handler` without a transaction, and then
    /// claims the message with its effects.
    ///
    /// No message is lost: a message is claimed only after its handler has succeeded. The effects
    /// are recorded once, with the claim. **The work of the handler is not exactly once**: the
    /// handler runs again if its process was killed before the claim. Two handlers can run for one
    /// message at the same time. Only one of them can claim the message at its end; the result of
    /// the other is a duplicate, and its effects are dropped. Use this function for work that may
    /// occasionally be done twice. [`process_leased`](Self::process_leased) excludes other
    /// processes while the handler runs, and counts attempts.
    ///
    /// Fails with [`Error::Invalid`], before the handler runs, if the policy compares fingerprints
    /// or rejects expired messages. Attempts are not counted.
    pub async fn process_checked<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let ready = match self.prepare(message).await? {
            Prepared::Ready(ready) => ready,
            Prepared::Done(processed) => return Ok(processed),
        };
        let span = ready.processing.span().clone();
        let processed = self
            .check_and_record(pool, &ready, handler)
            .instrument(span)
            .await;
        self.conclude(ready, processed).await
    }

    async fn check_and_record<F, Fut>(
        &self,
        pool: &Pool,
        ready: &Ready,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let policy = ready.policy();
        if let Some(id) = &ready.id {
            check_checked(policy).map_err(Error::Policy)?;
            let is_known = again(policy.retry, || async {
                let step = ShortTransaction::new(pool).await?;
                let is_known = step
                    .run(is_claimed(step.client(), id, &ready.destination))
                    .await;
                step.end(is_known)
            });
            if is_known.await? {
                return duplicate(pool, policy, id, &ready.destination).await;
            }
        }
        let handled = async {
            self.filter_effects(&ready.message, handler(ready.message.clone()).await?)
                .await
        };
        let effects = handled.await.map_err(Error::Handler)?;
        // Claim and record in a normal transaction. The work is done, so the handler of this
        // transaction only returns the effects.
        let record = |tx: Tx, _: Message| {
            drop(tx);
            let effects = effects.clone();
            async { Ok(effects) }
        };
        let processed = engine::run(&self.work(pool, ready), &record, None).await;
        if let Ok(Processed::Duplicate { .. }) = &processed {
            tracing::warn!(
                destination = %ready.destination,
                "a message was handled twice at the same time"
            );
        }
        processed
    }
}
