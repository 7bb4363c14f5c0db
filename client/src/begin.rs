//! A transaction without extra round trips: BEGIN travels with the claim, recording with COMMIT.
//!
//! The driver sends a request at the first poll of its future, so two futures that are polled one after the other
//! share a round trip. `tokio_postgres::Transaction` keeps its connection to itself until its own BEGIN is answered,
//! and is used up by its COMMIT. Hence a transaction type of this crate, over a connection that the user owns.

use std::{future::Future, ops::Deref, pin::pin, task::Poll};

use futures_util::{FutureExt, poll};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::{Claim, Destination, Effect, Error, MessageId, claim::query_claim};

/// Begins a transaction and claims a message in one round trip. `None` is a duplicate, and no transaction is open.
pub async fn begin_and_claim<'c>(
    client: &'c mut Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<Option<ClaimedTransaction<'c>>, Error> {
    // From here on whatever ends this function early also ends the transaction.
    let open = Open { client, is_open: true };
    let claimed = {
        let mut begin = pin!(open.client.batch_execute("BEGIN"));
        // BEGIN must leave first, or the claim would commit by itself.
        let begun = poll!(begin.as_mut());
        let claimed = query_claim(open.client, id, destination).await;
        settle(begun, begin).await?;
        claimed?
    };
    Ok(claimed.then(|| ClaimedTransaction {
        claim: Claim::won(open.client, id, destination),
        open,
    }))
}

/// A transaction that began together with its claim. Rolls back when dropped.
///
/// It derefs to the [`Client`], which takes the business statements.
#[must_use = "dropping it rolls the claim back"]
pub struct ClaimedTransaction<'c> {
    claim: Claim<'c>,
    open: Open<'c>,
}

impl<'c> ClaimedTransaction<'c> {
    /// The claim.
    pub fn claim(&self) -> &Claim<'c> {
        &self.claim
    }

    /// Records the effects and commits in one round trip; answers the message ids.
    ///
    /// An error other than [`Error::AmbiguousCommit`] is a certain rollback. A statement of this transaction that
    /// failed unnoticed is found here too.
    pub async fn record_and_commit(self, effects: &[Effect]) -> Result<Vec<Uuid>, Error> {
        let Self { claim, mut open } = self;
        let mut record = pin!(claim.record_effects(effects));
        let recorded = poll!(record.as_mut());
        if let Poll::Ready(Err(error)) = recorded {
            // It never left, or the connection is gone already: COMMIT was not sent.
            return Err(error);
        }
        // Should recording fail, the server makes a ROLLBACK of this COMMIT.
        let mut commit = pin!(open.client.batch_execute("COMMIT"));
        let committed = poll!(commit.as_mut());
        open.is_open = false;
        let ids = match settle(recorded, record).await {
            Err(Error::Database(error)) => return Err(Error::of_commit(error)),
            answer => answer?,
        };
        settle(committed, commit).await.map_err(Error::of_commit)?;
        Ok(ids)
    }

    /// Commits a message without effects.
    pub async fn commit(self) -> Result<(), Error> {
        self.record_and_commit(&[]).await.map(drop)
    }

    /// Rolls back and waits for it: the message is free again.
    pub async fn rollback(self) -> Result<(), Error> {
        let mut open = self.open;
        open.is_open = false;
        Ok(open.client.batch_execute("ROLLBACK").await?)
    }
}

impl Deref for ClaimedTransaction<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.open.client
    }
}

/// An open transaction on a connection that nobody else uses: `begin_and_claim` took it by `&mut`.
struct Open<'c> {
    client: &'c Client,
    is_open: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // The first poll sends it, and nobody waits for the answer: the connection works off its requests in order.
            let _ = self.client.batch_execute("ROLLBACK").now_or_never();
        }
    }
}

/// The result of a future that was polled once before.
async fn settle<T>(first: Poll<T>, rest: impl Future<Output = T>) -> T {
    match first {
        Poll::Ready(answer) => answer,
        Poll::Pending => rest.await,
    }
}
