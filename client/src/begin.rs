//! Begins and commits a transaction without extra round trips: BEGIN is sent together with the
//! claim, and the effects are recorded together with COMMIT.
//!
//! A `tokio_postgres::Transaction` exists only after the server has replied to its BEGIN, and its
//! `commit` consumes it. So this module has its own transaction type, over a connection that the
//! caller owns.

use std::ops::Deref;

use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    Claim, Claimed, Destination, Effect, Error, Executor, MessageId, OpenTransaction, Row,
    claim::record_effects,
    escape::last_value,
    outcome::ClaimOutcome,
    pipeline::{FORBID_COMMIT_COLUMN, commit_guarded, rollback_without_wait},
    span,
};

/// Begins a transaction and claims a message in one round trip.
///
/// Only the functions of the [`ClaimedTransaction`] commit it: a statement COMMIT fails with 2D000.
///
/// If the message is a duplicate, no transaction is open after this function.
pub async fn begin_and_claim<'c>(
    client: &'c mut Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<Claim<ClaimedTransaction<'c>>, Error> {
    // If this future is dropped early, `open` is dropped too, which rolls back.
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

/// Begins a transaction and claims a message. Returns whether the message is claimed. The
/// transaction is open in both cases.
///
/// All statements are sent as one simple query, so they succeed or fail together. If BEGIN were a
/// separate message and were cancelled, the claim after it would commit by itself, and the message
/// would never be processed.
async fn begin_with_claim(
    client: &Client,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = format!(
        "BEGIN; SELECT idem_try_claim({}, {}), {FORBID_COMMIT_COLUMN}",
        id.literal()?,
        destination.literal()?
    );
    let span = span::of_message("try_claim", id, destination);
    async {
        let answers = client.simple_query(&sql).await?;
        let outcome = ClaimOutcome::parse(last_value(&answers))?;
        span.record("idem.outcome", outcome.as_str());
        match outcome {
            ClaimOutcome::Claimed => Ok(true),
            ClaimOutcome::Duplicate => Ok(false),
            other => Err(Error::Unexpected(format!(
                "a claim returned {}",
                other.as_str()
            ))),
        }
    }
    .instrument(span.clone())
    .await
}

/// A transaction that began together with its claim. Rolls back when dropped.
///
/// Dereferences to the [`Client`], which executes the business statements.
#[must_use = "dropping it rolls the claim back"]
pub struct ClaimedTransaction<'c> {
    claim: Claimed<'c>,
    open: Open<'c>,
}

impl<'c> ClaimedTransaction<'c> {
    /// Returns the claim.
    pub fn claim(&self) -> &Claimed<'c> {
        &self.claim
    }

    /// Records the effects and commits in one round trip.
    ///
    /// Returns the message ids of the effects, in the same order.
    ///
    /// After an error other than [`Error::AmbiguousCommit`], the transaction is certainly rolled
    /// back. This function also fails if an earlier statement of the transaction failed and the
    /// caller ignored its error, for example a COMMIT, which the server rejects. It fails with
    /// [`Error::TransactionEnded`] if the caller has executed ROLLBACK, and with
    /// [`Error::SettingsChanged`] if the caller has changed the role or the search_path and has not
    /// restored it.
    pub async fn record_and_commit(self, effects: &[Effect]) -> Result<Vec<Uuid>, Error> {
        let Self { claim, mut open } = self;
        let record = || record_effects(open.client, claim.id(), claim.destination(), effects);
        let record = (!effects.is_empty()).then(record);
        let recorded = commit_guarded(open.client, record.into_iter().collect()).await;
        open.is_open = false;
        Ok(recorded?.into_iter().flatten().collect())
    }

    /// Commits a message without effects.
    pub async fn commit(self) -> Result<(), Error> {
        self.record_and_commit(&[]).await.map(drop)
    }

    /// Rolls back and waits for the reply. The message can then be claimed again.
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

impl Executor for ClaimedTransaction<'_> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.open.client.fetch_all(sql, parameters).await
    }
}

impl OpenTransaction for ClaimedTransaction<'_> {}

/// An open transaction. Its connection has no other user, because `begin_and_claim` borrows it by
/// `&mut`.
struct Open<'c> {
    client: &'c Client,
    is_open: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_open {
            rollback_without_wait(self.client);
        }
    }
}
