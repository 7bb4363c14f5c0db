//! Stores the messages of a consumer's route in the inbox.

use deadpool_postgres::Pool;
use idem_client::inbox::{InboxMessage, receive, receive_batch};
use idem_client::{Destination, MessageId};
use uuid::Uuid;

use crate::{Error, Idem, Message, Processed, connection::Checkout};

/// Stores one message. Returns whether the message was new or a duplicate. The message may be
/// acknowledged in both cases.
pub(crate) async fn store(
    idem: &Idem,
    pool: &Pool,
    to: &Destination,
    message: &Message,
) -> Result<Processed, Error> {
    let id = id_of(idem, message)?;
    let checkout = Checkout::take(pool).await?;
    // There is no time limit: the statement may wait for the transaction of another claimer, which
    // takes as long as its handler.
    let is_new = receive(&**checkout.client(), &id, to, &InboxMessage::from(message)).await;
    Ok(processed_of(checkout.end(is_new)?))
}

/// Stores several messages in one statement. Returns one result for each message, in the same
/// order. After an error nothing was stored.
pub(crate) async fn store_batch(
    idem: &Idem,
    pool: &Pool,
    to: &Destination,
    messages: &[Message],
) -> Result<Vec<Result<Processed, Error>>, Error> {
    let mut letters = Vec::with_capacity(messages.len());
    for message in messages {
        letters.push((id_of(idem, message)?, InboxMessage::from(message)));
    }
    let checkout = Checkout::take(pool).await?;
    let are_new = receive_batch(&**checkout.client(), to, &letters).await;
    Ok(checkout
        .end(are_new)?
        .into_iter()
        .map(|is_new| Ok(processed_of(is_new)))
        .collect())
}

/// Returns the id of the message. A message that has no id, and is accepted without one, gets a
/// random id, so each delivery is stored.
fn id_of(idem: &Idem, message: &Message) -> Result<MessageId, Error> {
    Ok(idem
        .id_of(message)?
        .unwrap_or_else(|| Uuid::new_v4().into()))
}

fn processed_of(is_new: bool) -> Processed {
    match is_new {
        true => Processed::New {
            effects: Vec::new(),
        },
        false => Processed::duplicate(),
    }
}
