//! The route of a consumer that ends in the inbox.

use deadpool_postgres::Pool;
use uuid::Uuid;

use super::{Letter, receive, receive_batch};
use crate::{Destination, Error, Idem, Message, MessageId, Processed, connection::Loan};

/// Stores one message. It was new or it is a duplicate, and may be acknowledged either way.
pub(crate) async fn store(
    idem: &Idem,
    pool: &Pool,
    to: &Destination,
    message: &Message,
) -> Result<Processed, Error> {
    let id = id_of(idem, message)?;
    let loan = Loan::take(pool).await?;
    // It may wait for the transaction of another claimer, which takes as long as its handler.
    let is_new = receive(&**loan.client(), &id, to, &Letter::from(message)).await;
    Ok(answer(loan.end(is_new)?))
}

/// Stores many in one statement, and answers by position. An error is one of all of them, and
/// nothing was stored.
pub(crate) async fn store_batch(
    idem: &Idem,
    pool: &Pool,
    to: &Destination,
    messages: &[Message],
) -> Result<Vec<Result<Processed, Error>>, Error> {
    let mut letters = Vec::with_capacity(messages.len());
    for message in messages {
        letters.push((id_of(idem, message)?, Letter::from(message)));
    }
    let loan = Loan::take(pool).await?;
    let are_new = receive_batch(&**loan.client(), to, &letters).await;
    Ok(loan
        .end(are_new)?
        .into_iter()
        .map(|is_new| Ok(answer(is_new)))
        .collect())
}

/// What it is known by. What has no id and may pass is stored once for each delivery.
fn id_of(idem: &Idem, message: &Message) -> Result<MessageId, Error> {
    Ok(idem
        .id_of(message)?
        .unwrap_or_else(|| Uuid::new_v4().into()))
}

fn answer(is_new: bool) -> Processed {
    if is_new {
        Processed::New {
            effects: Vec::new(),
        }
    } else {
        Processed::Duplicate {
            effects: Vec::new(),
        }
    }
}
