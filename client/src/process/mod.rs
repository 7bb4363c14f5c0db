//! One message, once: claim, work, record, commit.

mod processed;
mod tx;

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;

use crate::{Destination, Error, Handled, Message, MessageId, begin, process::tx::Loan};

pub use processed::Processed;
pub use tx::Tx;

/// Processes messages so that each takes effect once. Cheap to clone; one for a whole application.
#[derive(Clone, Debug, Default)]
pub struct Idem {
    settings: Arc<Settings>,
}

#[derive(Debug, Default)]
struct Settings {}

impl Idem {
    /// With the defaults: claim first, by the sender's message id, and acknowledge duplicates silently.
    pub fn new() -> Self {
        Self::default()
    }

    /// Claims the message, lets `handler` work, records the effects that it answers, and commits.
    ///
    /// BEGIN travels with the claim, recording with COMMIT. A handler runs again after a lost conflict or connection, so
    /// what it does outside of the transaction may happen more than once.
    pub async fn process<F, Fut>(&self, pool: &Pool, message: &Message, handler: F) -> Result<Processed, Error>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let _ = &self.settings;
        let destination = message.destination()?;
        let id = MessageId::text(message.message_id().ok_or(Error::MissingId)?)?;
        eager(pool, message, &id, &destination, handler).await
    }
}

async fn eager<F, Fut>(
    pool: &Pool,
    message: &Message,
    id: &MessageId,
    destination: &Destination,
    handler: F,
) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let loan = Loan::new(pool.get().await?);
    if !begin::begin_with_claim(loan.client(), id, destination).await? {
        begin::rollback_unheard(loan.client());
        loan.give_back();
        return Ok(Processed::Duplicate { effects: Vec::new() });
    }
    let handled = handler(loan.lend(), message.clone()).await;
    if loan.is_kept() {
        return Err(Error::TransactionKept);
    }
    let effects = match handled {
        Ok(effects) => effects,
        Err(error) => {
            begin::rollback_unheard(loan.client());
            loan.give_back();
            return Err(Error::Handler(error));
        }
    };
    let ids = begin::record_and_commit(loan.client(), id, destination, &effects).await?;
    loan.give_back();
    Ok(Processed::New { effects: ids })
}
