//! Runs a handler with neither a transaction nor a lease, unless the message was processed before.

use idem_client::Effect;

use super::{
    duplicate::{duplicate, is_claimed},
    filters::filter_effects,
    task::Task,
    work::WorkOnce,
};
use crate::{Error, Processed, policy::check_checked};

/// What is left to do for a checked message.
pub(super) enum Checked {
    /// The handler has succeeded. Claim the message and record its effects.
    Worked(Vec<Effect>),
    /// The message was processed before.
    Duplicate(Processed),
}

/// Looks for the claim of the message, and runs the handler if there is none.
pub(super) async fn check_and_work(
    task: &Task<'_>,
    handler: impl WorkOnce<()>,
) -> Result<Checked, Error> {
    if let Some(id) = task.id {
        check_checked(task.policy).map_err(Error::Policy)?;
        if is_claimed(task, id).await? {
            return duplicate(task, id).await.map(Checked::Duplicate);
        }
    }
    let work = async {
        let effects = handler((), task.message.clone()).await?;
        filter_effects(task.settings, task.message, effects).await
    };
    work.await.map(Checked::Worked).map_err(Error::Handler)
}
