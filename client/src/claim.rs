//! Claims: the right to process a message.

use std::{ops::Deref, slice, vec};

use time::OffsetDateTime;
use tokio_postgres::types::{Json, Type};
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    Claim, Destination, Effect, Error, Executor, MessageId, OpenTransaction,
    executor::{AnyExecutor, value},
    id::IdArray,
    outcome::ClaimOutcome,
    span,
};

/// Proof that this transaction has claimed a message, and the only way to record the effects of the
/// message.
///
/// Borrows the transaction, so it cannot outlive a commit or a rollback. A claim that was made in a
/// savepoint is valid only as long as that savepoint.
///
/// Only a claim creates this value, so recording without a claim does not compile:
///
/// ```compile_fail,E0451
/// # fn forge(
/// #     client: &tokio_postgres::Client,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) {
/// let forged = idem_client::Claimed { executor: client, id, destination };
/// # }
/// ```
///
/// Recording after the end of the transaction does not compile either:
///
/// ```compile_fail,E0505
/// # async fn handler(
/// #     tx: tokio_postgres::Transaction<'_>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let claim = idem_client::try_claim(&tx, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// tx.commit().await?;
/// claim.record_effects(&[]).await?;
/// # Ok(()) }
/// ```
///
/// Recording before the commit compiles:
///
/// ```
/// # async fn handler(
/// #     tx: tokio_postgres::Transaction<'_>,
/// #     id: idem_client::MessageId,
/// #     destination: idem_client::Destination,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let claim = idem_client::try_claim(&tx, &id, &destination).await?;
/// let claim = claim.into_new().ok_or("duplicate")?;
/// claim.record_effects(&[]).await?;
/// idem_client::commit(tx).await?;
/// # Ok(()) }
/// ```
#[must_use = "the message is claimed: process it in this transaction, or roll back"]
pub struct Claimed<'t> {
    executor: &'t dyn AnyExecutor,
    id: MessageId,
    destination: Destination,
}

impl<'t> Claimed<'t> {
    /// Creates the proof. Call this only after a claim on this connection has returned `true`.
    pub(crate) fn won(
        executor: &'t dyn AnyExecutor,
        id: &MessageId,
        destination: &Destination,
    ) -> Self {
        Self {
            executor,
            id: id.clone(),
            destination: destination.clone(),
        }
    }

    /// Returns the id that was claimed.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// Returns the destination for which the id was claimed.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Records the effects of this message. Returns their message ids, in the same order.
    ///
    /// Relays and later transactions can read the effects only after this transaction has
    /// committed.
    pub async fn record_effects(&self, effects: &[Effect]) -> Result<Vec<Uuid>, Error> {
        record_effects(self.executor, &self.id, &self.destination, effects).await
    }
}

/// Records the effects of a claim: id, destination and a JSON array of effects. Returns their
/// message ids.
const RECORD_EFFECTS: &str = "SELECT idem_record_effects($1, $2, $3)";

/// Records the effects of several claims: an array of ids as text, destination and a JSON array
/// that has an array of effects for each id. Returns the message ids of all effects.
pub const RECORD_EFFECTS_BATCH: &str = "SELECT idem_record_effects_batch($1, $2, $3)";

pub(crate) async fn record_effects(
    executor: &(impl Executor + ?Sized),
    id: &MessageId,
    destination: &Destination,
    effects: &[Effect],
) -> Result<Vec<Uuid>, Error> {
    value(
        executor,
        RECORD_EFFECTS,
        &[
            id.parameter(),
            destination.parameter(),
            (&Json(effects), Type::JSONB),
        ],
    )
    .instrument(span::of_message("record_effects", id, destination))
    .await
}

impl std::fmt::Debug for Claimed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claimed")
            .field("id", &self.id)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

/// Claims a message.
///
/// Returns only [`Claim::New`] or [`Claim::Duplicate`]. Waits for another transaction that is
/// claiming the same message.
///
/// A duplicate is an outcome and not an error: the transaction stays usable, and
/// [`effects`](crate::effects) returns what the first execution recorded.
pub async fn try_claim<'t>(
    tx: &'t impl OpenTransaction,
    id: &MessageId,
    destination: &Destination,
) -> Result<Claim<Claimed<'t>>, Error> {
    let span = span::of_message("try_claim", id, destination);
    async {
        let row = tx
            .fetch_one(
                "SELECT idem_try_claim($1, $2)",
                &[id.parameter(), destination.parameter()],
            )
            .await?;
        let claimed: bool = row.try_get(0)?;
        span.record(
            "idem.outcome",
            if claimed { "claimed" } else { "duplicate" },
        );
        Ok(Claim::new_if(claimed, || Claimed::won(tx, id, destination)))
    }
    .instrument(span.clone())
    .await
}

/// Claims many messages in one statement.
///
/// The outcomes are in the order of `ids`. The second of two equal ids is a duplicate.
pub async fn try_claim_batch<'t>(
    tx: &'t impl OpenTransaction,
    ids: &[MessageId],
    destination: &Destination,
) -> Result<Claims<'t>, Error> {
    let array = IdArray::new(ids);
    let row = tx
        .fetch_one(
            &format!("SELECT {}($1, $2)", array.batch_function()),
            &[array.parameter(), destination.parameter()],
        )
        .instrument(span::of_batch("try_claim_batch", destination, ids.len()))
        .await?;
    let claimed: Vec<bool> = row.try_get(0)?;
    if claimed.len() != ids.len() {
        return Err(Error::Unexpected(format!(
            "{} results for {} ids",
            claimed.len(),
            ids.len()
        )));
    }
    let claims = claimed.into_iter().zip(ids);
    let claims =
        claims.map(|(claimed, id)| Claim::new_if(claimed, || Claimed::won(tx, id, destination)));
    Ok(Claims(claims.collect()))
}

/// Options of [`claim`].
#[derive(Clone, Debug)]
pub struct ClaimOptions {
    wait: bool,
    fingerprint: Option<Vec<u8>>,
    sent_at: Option<OffsetDateTime>,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        Self {
            wait: true,
            fingerprint: None,
            sent_at: None,
        }
    }
}

impl ClaimOptions {
    /// Returns [`Claim::InProgress`] instead of waiting for another transaction that is claiming
    /// the same message.
    pub fn no_wait(mut self) -> Self {
        self.wait = false;
        self
    }

    /// Stores a digest of the content with the claim.
    ///
    /// A claim of the same identity with another digest returns [`Claim::Mismatch`].
    pub fn fingerprint(mut self, fingerprint: impl Into<Vec<u8>>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Sets the time at which the message was sent.
    ///
    /// If the message was sent before the time since which the server remembers claims, the claim
    /// returns [`Claim::Expired`], unless an earlier claim is found.
    pub fn sent_at(mut self, sent_at: OffsetDateTime) -> Self {
        self.sent_at = Some(sent_at);
        self
    }
}

/// Claims a message with options. Distinguishes more outcomes than [`try_claim`].
pub async fn claim<'t>(
    tx: &'t impl OpenTransaction,
    id: &MessageId,
    destination: &Destination,
    options: &ClaimOptions,
) -> Result<Claim<Claimed<'t>>, Error> {
    let span = span::of_message("claim", id, destination);
    async {
        let row = tx
            .fetch_one(
                "SELECT outcome::text, handled_at FROM idem_claim_in_block($1, $2, $3, $4, $5)",
                &[
                    id.parameter(),
                    destination.parameter(),
                    (&options.wait, Type::BOOL),
                    (&options.fingerprint, Type::BYTEA),
                    (&options.sent_at, Type::TIMESTAMPTZ),
                ],
            )
            .await?;
        let outcome = ClaimOutcome::parse(row.try_get(0)?)?;
        span.record("idem.outcome", outcome.as_str());
        Ok(match outcome {
            ClaimOutcome::Claimed => Claim::New(Claimed::won(tx, id, destination)),
            ClaimOutcome::Duplicate => Claim::Duplicate {
                handled_at: row.try_get(1)?,
            },
            ClaimOutcome::InProgress => Claim::InProgress,
            ClaimOutcome::Mismatch => Claim::Mismatch {
                handled_at: row.try_get(1)?,
            },
            ClaimOutcome::Expired => Claim::Expired,
        })
    }
    .instrument(span.clone())
    .await
}

/// Claims a message and records its effects in one function call, at the end of a transaction that
/// has already processed the message.
///
/// After [`Claim::Duplicate`] **roll back**, because the message was processed twice.
pub async fn try_record(
    tx: &impl OpenTransaction,
    id: &MessageId,
    destination: &Destination,
    effects: &[Effect],
) -> Result<Claim<()>, Error> {
    let claimed = value(
        tx,
        "SELECT idem_try_record($1, $2, $3)",
        &[
            id.parameter(),
            destination.parameter(),
            (&Json(effects), Type::JSONB),
        ],
    )
    .instrument(span::of_message("try_record", id, destination))
    .await?;
    Ok(Claim::new_if(claimed, || ()))
}

/// Returns whether the message was claimed by a committed transaction or by this one.
///
/// Works on a standby, because it only reads.
pub async fn is_claimed(
    executor: &impl Executor,
    id: &MessageId,
    destination: &Destination,
) -> Result<bool, Error> {
    let sql = "SELECT idem_is_claimed($1, $2)";
    value(executor, sql, &[id.parameter(), destination.parameter()])
        .instrument(span::of_message("is_claimed", id, destination))
        .await
}

/// The outcomes of the claims of a batch, by position.
///
/// Dereferences to a slice, and can be iterated.
#[derive(Debug)]
#[must_use = "only the new messages may be processed"]
pub struct Claims<'t>(Vec<Claim<Claimed<'t>>>);

impl<'t> Deref for Claims<'t> {
    type Target = [Claim<Claimed<'t>>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'t> IntoIterator for Claims<'t> {
    type Item = Claim<Claimed<'t>>;
    type IntoIter = vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'c, 't> IntoIterator for &'c Claims<'t> {
    type Item = &'c Claim<Claimed<'t>>;
    type IntoIter = slice::Iter<'c, Claim<Claimed<'t>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
