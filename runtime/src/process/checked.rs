//! The way of a message whose handler works with neither a lease nor a transaction.

use std::future::Future;

use idem_client::Effect;

use super::{
    doubt::Doubt,
    duplicate::{duplicate, is_claimed},
    in_transaction::attempts,
    processed::{ProcessResult, Processed},
    task::Task,
    tx::Tx,
    work::filtered,
};
use crate::{Error, Handled, Message, policy::check_checked};

/// Runs the handler unless the message is claimed, and then claims the message with the effects.
pub(super) async fn work_checked<F, Fut>(task: &Task<'_>, handler: F) -> ProcessResult
where
    F: FnOnce(Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    if let Some(id) = task.id {
        check_checked(task.policy).map_err(Error::Policy)?;
        if is_claimed(task, id).await? {
            return duplicate(task, id).await;
        }
    }
    let handled = handler(task.message.clone());
    let effects = filtered(task.settings, task.message, handled).await;
    recorded(task, effects.map_err(Error::Handler)?).await
}

/// Claims the message and records its effects in a transaction of its own, after the handler has
/// succeeded without one.
async fn recorded(task: &Task<'_>, effects: Vec<Effect>) -> ProcessResult {
    // The work is done, so the handler of this transaction only returns the effects.
    let handler = |tx: Tx, _: Message| {
        drop(tx);
        let effects = effects.clone();
        async { Ok(effects) }
    };
    let mut doubt = Doubt::default();
    let result = attempts(task, &handler, &mut doubt).await;
    // After an ambiguous commit, this function itself may have committed the claim.
    if matches!(result, Ok(Processed::Duplicate { .. })) && !doubt.was_open() {
        tracing::warn!(
            destination = %task.destination,
            "another process handled this message while its handler ran here"
        );
    }
    result
}
