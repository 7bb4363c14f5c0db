//! A consumer with SeaORM.

use anyhow::{Context, Result};
use idem_client::{Claim, Destination, Effect, MessageId, try_claim};
use sea_orm::entity::prelude::*;
use sea_orm::{ActiveValue::Set, DatabaseConnection, DatabaseTransaction, TransactionTrait};

use super::{Faults, Message, Point};
use crate::idem_seaorm::{SeaOrm, commit};

pub mod account {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "account")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: i32,
        pub balance: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

pub mod payment {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "payment")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub account: i32,
        pub message: Option<String>,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

pub mod queue {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "queue")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: String,
        pub account: i32,
        pub cents: i64,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

/// Consumes until the queue is empty.
pub async fn consume(db: &DatabaseConnection, faults: Faults) -> Result<()> {
    while let Some(row) = queue::Entity::find().one(db).await? {
        let message = Message {
            id: row.id.clone(),
            account: row.account,
            cents: row.cents,
        };
        if faults.is_without_claim {
            let tx = db.begin().await?;
            pay(&tx, &message).await?;
            tx.commit().await?;
        } else {
            handle(db, &message, faults).await?;
        }
        faults.reached(Point::AfterCommit).await;
        row.delete(db).await?; // Acknowledges the message.
    }
    Ok(())
}

/// Processes a message once. Acknowledge it after `Ok`.
pub async fn handle(db: &DatabaseConnection, message: &Message, faults: Faults) -> Result<()> {
    let (id, to) = (MessageId::text(&message.id)?, Destination::new("payments")?);
    let tx = db.begin().await?;
    let idem = SeaOrm(&tx);
    let Claim::New(claim) = try_claim(&idem, &id, &to).await? else {
        return Ok(()); // A duplicate.
    };
    pay(&tx, message).await?;
    claim
        .record_effects(&[Effect::json("receipts", &message.cents)?])
        .await?;
    faults.reached(Point::BeforeCommit).await;
    commit(tx).await?;
    Ok(())
}

/// The work, with the entities of the application.
pub async fn pay(tx: &DatabaseTransaction, message: &Message) -> Result<()> {
    let account = account::Entity::find_by_id(message.account).one(tx).await?;
    let account = account.context("there is no such account")?;
    let balance = account.balance - message.cents;
    let mut account: account::ActiveModel = account.into();
    account.balance = Set(balance);
    account.update(tx).await?;
    let payment = payment::ActiveModel {
        account: Set(message.account),
        message: Set(Some(message.id.clone())),
        cents: Set(message.cents),
        ..Default::default()
    };
    payment.insert(tx).await?;
    Ok(())
}
