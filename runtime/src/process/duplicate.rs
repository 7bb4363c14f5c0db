//! The outcome of a message that is not processed, because it was processed before or is not
//! claimed.

use idem_client::{MessageId, effects, sql::ClaimOutcome};

use super::{session::Session, task::Task};
use crate::{
    Error, Processed,
    policy::OnDuplicate,
    short_transaction::{in_retried_transaction, in_short_transaction},
};

/// Returns whether a committed transaction has claimed the message.
pub(super) async fn is_claimed(task: &Task<'_>, id: &MessageId) -> Result<bool, Error> {
    in_retried_transaction(task.pool, task.policy.retry, async |client| {
        idem_client::is_claimed(&**client, id, task.destination).await
    })
    .await
}

/// Returns the outcome of a duplicate, with the recorded effects if the policy requests them.
pub(super) async fn duplicate(task: &Task<'_>, id: &MessageId) -> Result<Processed, Error> {
    if task.policy.on_duplicate != OnDuplicate::Effects {
        return Ok(Processed::duplicate());
    }
    let recorded = in_short_transaction(task.pool, async |client| {
        effects(&**client, id, task.destination).await
    });
    Ok(Processed::Duplicate {
        effects: recorded.await?,
    })
}

/// Returns the outcome of a message that the transaction of this session did not claim. The
/// transaction is still open.
pub(super) async fn not_claimed(
    session: &Session,
    task: &Task<'_>,
    id: &MessageId,
    outcome: ClaimOutcome,
) -> Result<Processed, Error> {
    match outcome {
        ClaimOutcome::InProgress => Ok(Processed::InProgress),
        ClaimOutcome::Mismatch => Ok(Processed::Mismatch),
        ClaimOutcome::Expired => Ok(Processed::Expired),
        ClaimOutcome::Claimed | ClaimOutcome::Duplicate => Ok(Processed::Duplicate {
            effects: match task.policy.on_duplicate {
                OnDuplicate::Effects => effects(session.client(), id, task.destination).await?,
                _ => Vec::new(),
            },
        }),
    }
}
