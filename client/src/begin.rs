//! A transaction without extra round trips: BEGIN travels with the claim, recording with COMMIT.
//!
//! `tokio_postgres::Transaction` keeps its connection to itself until its own BEGIN is answered,
//! and is used up by its COMMIT. Hence a transaction type of this crate, over a connection that the
//! user owns.

use std::ops::Deref;

use tokio_postgres::{Client, SimpleQueryMessage};
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    Claim, Claimed, Destination, Effect, Error, MessageId,
    claim::record_effects,
    sent::{Sent, commit_alone, commit_behind, rollback_unheard},
    span,
};

/// Begins a transaction and claims a message in one round trip. After a duplicate no transaction is
/// open.
pub async fn begin_and_claim<'c>(
    client: &'c mut Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<Claim<ClaimedTransaction<'c>>, Error> {
    // From here on whatever ends this function early also ends the transaction.
    let open = Open {
        client,
        is_open: true,
    };
    let claimed = begin_with_claim(open.client, id, destination).await?;
    Ok(Claim::new_if(claimed, || ClaimedTransaction {
        claim: Claimed::won(open.client, id, destination),
        open,
    }))
}

/// Begins and claims; answers whether it is claimed. The transaction is open either way.
///
/// One simple query, because its statements stand or fall together: were BEGIN a message of its own
/// and cancelled, the claim behind it would commit by itself, and nobody would ever process the
/// message.
async fn begin_with_claim(
    client: &Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = format!(
        "BEGIN; SELECT idem_try_claim({}, {})",
        id.literal()?,
        destination.literal()?
    );
    let span = span::of_message("try_claim", id, destination);
    async {
        let answers = client.simple_query(&sql).await?;
        let claimed = match only_value(&answers) {
            Some("t") => true,
            Some("f") => false,
            other => return Err(Error::Unexpected(format!("{other:?} to a claim"))),
        };
        span.record(
            "idem.outcome",
            if claimed { "claimed" } else { "duplicate" },
        );
        Ok(claimed)
    }
    .instrument(span.clone())
    .await
}

/// The only value of the only row that a simple query has answered.
pub(crate) fn only_value(answers: &[SimpleQueryMessage]) -> Option<&str> {
    answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    })
}

/// A transaction that began together with its claim. Rolls back when dropped.
///
/// It derefs to the [`Client`], which takes the business statements.
#[must_use = "dropping it rolls the claim back"]
pub struct ClaimedTransaction<'c> {
    claim: Claimed<'c>,
    open: Open<'c>,
}

impl<'c> ClaimedTransaction<'c> {
    /// The claim.
    pub fn claim(&self) -> &Claimed<'c> {
        &self.claim
    }

    /// Records the effects and commits in one round trip; answers the message ids.
    ///
    /// An error other than [`Error::AmbiguousCommit`] is a certain rollback. A statement of this
    /// transaction that failed unnoticed is found here too.
    pub async fn record_and_commit(self, effects: &[Effect]) -> Result<Vec<Uuid>, Error> {
        let Self { claim, mut open } = self;
        let recorded = if effects.is_empty() {
            commit_alone(open.client).await.map(|()| Vec::new())
        } else {
            let record = Sent::new(record_effects(
                open.client,
                claim.id(),
                claim.destination(),
                effects,
            ))
            .await;
            commit_behind(open.client, vec![record]).await
        };
        open.is_open = false;
        Ok(recorded?.into_iter().flatten().collect())
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
            rollback_unheard(self.client);
        }
    }
}
