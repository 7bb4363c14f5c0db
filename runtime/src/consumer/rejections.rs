//! Stores rejected messages as dead letters in the database when their broker does not keep them.

use deadpool_postgres::Pool;
use idem_client::{
    Destination, MessageId,
    sql::{ClaimOutcome, last_value},
};

use crate::{
    Error, Idem, Message,
    connection::{Checkout, STATEMENT, within},
    lease::Burial,
    panics::unwinding,
    policy::Retry,
    process::fingerprint,
    short_transaction::again,
};

/// The id under which a rejected message is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptAs {
    /// The message's own id, as its policy reads it. A hash is used instead if the message has no
    /// id, or if a message with another fingerprint was processed under that id.
    Itself,
    /// A hash of the whole message. Used for a message without a known destination, and for a
    /// message that has the id of another message.
    Hash,
}

/// Stores a message as a dead letter of this destination. After success the caller may acknowledge
/// the message. Returns false when the message is a dead letter already or was processed.
pub(super) async fn keep(
    idem: &Idem,
    pool: &Pool,
    destination: &Destination,
    message: &Message,
    kept_as: KeptAs,
    reason: &str,
) -> Result<bool, Error> {
    let burial = Burial::of(message, reason);
    let id = match kept_as {
        KeptAs::Itself => own_id(idem, message).await,
        KeptAs::Hash => None,
    };
    let store = async |id: Option<&MessageId>| {
        again(Retry::default(), || burial.reject(id, destination, pool)).await
    };
    let mut is_new = store(id.as_ref()).await?;
    let compares = idem
        .settings()
        .policies
        .of(destination.as_str())
        .policy
        .fingerprint;
    if let Some(id) = &id
        && !is_new
        && compares
        && is_of_another(pool, id, destination, message).await?
    {
        is_new = store(None).await?;
    }
    tracing::warn!(
        reason,
        is_new,
        destination = destination.as_str(),
        message_id = message.message_id(),
        topic = message.topic(),
        "a message is rejected: it is in idem.dead_letters unless it was processed before"
    );
    Ok(is_new)
}

/// Returns the message's own id, as its policy reads it. Returns `None` if there is none, or if the
/// user's id function panics, perhaps as it did at the attempt.
async fn own_id(idem: &Idem, message: &Message) -> Option<MessageId> {
    let id = unwinding(async { idem.id_of(message) }).await;
    id.ok().and_then(Result::ok).flatten()
}

/// Returns whether a message with another fingerprint was processed under this id. The function
/// claims the message to find this out, and rolls the claim back.
async fn is_of_another(
    pool: &Pool,
    id: &MessageId,
    destination: &Destination,
    message: &Message,
) -> Result<bool, Error> {
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; \
         SELECT outcome FROM idem_claim({}, {}, false, decode('{}', 'hex')); ROLLBACK",
        id.literal()?,
        destination.literal()?,
        fingerprint(message)
    );
    let checkout = Checkout::take(pool).await?;
    checkout.begins();
    // After an error the connection is in a failed transaction, so it is closed.
    let reply = within(STATEMENT, async {
        Ok::<_, Error>(checkout.client().simple_query(&sql).await?)
    })
    .await?;
    checkout.return_to_pool();
    Ok(last_value(&reply) == Some(ClaimOutcome::Mismatch.as_str()))
}
