//! Rejected messages that their broker does not keep: they become dead letters of the database.

use deadpool_postgres::Pool;

use crate::{
    Destination, Error, Idem, Message, Retry,
    deadletters::reject,
    lease::Burial,
    panics::unwinding,
    step::{Step, again},
};

/// Under which id a message is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptAs {
    /// Its own, as its policy reads it; a hash when it has none.
    Itself,
    /// A hash of all that it carries: its own id belongs to another message, or to no destination.
    Hash,
}

/// Keeps a message as a dead letter of this destination. When it returns, the broker may forget the
/// message.
pub(super) async fn keep(
    idem: &Idem,
    pool: &Pool,
    destination: &Destination,
    message: &Message,
    kept_as: KeptAs,
    reason: &str,
) -> Result<(), Error> {
    let with = Burial::from(message);
    let id = match kept_as {
        // A function of the user may panic, and may have done so before.
        KeptAs::Itself => unwinding(async { idem.id_of(message) })
            .await
            .ok()
            .and_then(Result::ok)
            .flatten(),
        KeptAs::Hash => None,
    };
    let store = || async {
        let step = Step::begin(pool).await?;
        let kept = reject(step.client(), id.as_ref(), destination, message.payload(), reason, &with);
        let kept = step.run(kept).await;
        step.end(kept)
    };
    let is_new = again(Retry::default(), store).await?;
    tracing::warn!(
        reason,
        is_new,
        destination = destination.as_str(),
        message_id = message.message_id(),
        topic = message.topic(),
        "a message is rejected; it is among the dead letters (idem.dead_letters) unless it was processed before"
    );
    Ok(())
}
