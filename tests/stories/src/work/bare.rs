//! External calls without a journal: the call is made in the business transaction, and a rollback
//! leaves no record of it.

use anyhow::{Result, bail};
use idem_runtime::{Handled, Idem, Message, Processed, Tx};
use uuid::Uuid;

use super::{
    outside::Outside,
    post::{Post, Role},
};
use crate::outside::Order;

pub async fn run(role: Role, post: &Post) -> Result<()> {
    let (pool, outside) = (post.pool()?, Outside::new(post.outside()?));
    let handle = |_tx: Tx, message: Message| call(role, outside.clone(), message);
    match Idem::new()
        .process(&pool, &post.message(role)?, handle)
        .await?
    {
        Processed::InProgress => bail!("another transaction is processing the message"),
        _ => Ok(()),
    }
}

async fn call(role: Role, outside: Outside, message: Message) -> Handled {
    let reference = message.message_id().unwrap_or_default().to_owned();
    let order = Order { reference };
    match role {
        Role::CarrierBare => drop(outside.book(&order).await?),
        Role::MailBare => outside.send(&order.reference).await?,
        _ => {
            let key = Uuid::new_v4().to_string();
            outside.charge(&order, &key).await?;
        }
    }
    Ok(Vec::new())
}
