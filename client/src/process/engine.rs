//! The transaction of one message: claim, work, record, commit.

use std::future::Future;

use deadpool_postgres::Pool;

use super::{builder::Settings, tx::Loan};
use crate::{Destination, Error, Handled, Message, MessageId, Policy, Processed, Tx, begin, send};

/// One message, and all that is known of it before the database is asked.
pub(crate) struct Work<'w> {
    pub(crate) pool: &'w Pool,
    pub(crate) message: &'w Message,
    /// `None`: a plain transaction, and effects that are sent in it.
    pub(crate) id: Option<&'w MessageId>,
    pub(crate) destination: &'w Destination,
    pub(crate) policy: &'w Policy,
    pub(crate) settings: &'w Settings,
}

pub(crate) async fn run<F, Fut>(work: &Work<'_>, handler: &F) -> Result<Processed, Error>
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    let _ = (work.policy, work.settings);
    let loan = Loan::new(work.pool.get().await?);
    match work.id {
        Some(id) => {
            if !begin::begin_with_claim(loan.client(), id, work.destination).await? {
                begin::rollback_unheard(loan.client());
                loan.give_back();
                return Ok(Processed::Duplicate { effects: Vec::new() });
            }
        }
        None => loan.client().batch_execute("BEGIN").await?,
    }
    let handled = handler(loan.lend(), work.message.clone()).await;
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
    let ids = match work.id {
        Some(id) => begin::record_and_commit(loan.client(), id, work.destination, &effects).await?,
        None => {
            let mut ids = Vec::new();
            for effect in &effects {
                ids.push(send(loan.client(), effect).await?);
            }
            loan.client().batch_execute("COMMIT").await.map_err(Error::of_commit)?;
            ids
        }
    };
    loan.give_back();
    Ok(Processed::New { effects: ids })
}
