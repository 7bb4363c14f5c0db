//! A consumer with diesel-async.

use anyhow::{Result, ensure};
use diesel::prelude::*;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use idem_client::{Claim, Destination, Effect, MessageId, try_claim};

use super::{Faults, Message, Point};
use crate::idem_diesel::DieselTransaction;

diesel::table! {
    account (id) {
        id -> Integer,
        balance -> BigInt,
    }
}

diesel::table! {
    payment (id) {
        id -> BigInt,
        account -> Integer,
        message -> Nullable<Text>,
        cents -> BigInt,
    }
}

diesel::table! {
    queue (id) {
        id -> Text,
        account -> Integer,
        cents -> BigInt,
    }
}

/// Consumes until the queue is empty.
pub async fn consume(conn: &mut AsyncPgConnection, faults: Faults) -> Result<()> {
    loop {
        let next = queue::table
            .first::<(String, i32, i64)>(conn)
            .await
            .optional()?;
        let Some((id, account, cents)) = next else {
            return Ok(());
        };
        let message = Message { id, account, cents };
        if faults.is_without_claim {
            conn.transaction(async |conn| pay(conn, &message).await)
                .await?;
        } else {
            handle(conn, &message, faults).await?;
        }
        faults.reached(Point::AfterCommit).await;
        // Acknowledges the message.
        diesel::delete(queue::table.find(&message.id))
            .execute(conn)
            .await?;
    }
}

/// Processes a message once. Acknowledge it after `Ok`.
pub async fn handle(conn: &mut AsyncPgConnection, message: &Message, faults: Faults) -> Result<()> {
    let (id, to) = (MessageId::text(&message.id)?, Destination::new("payments")?);
    conn.transaction(async |conn| {
        let idem = DieselTransaction::new(conn)?;
        let Claim::New(claim) = try_claim(&idem, &id, &to).await? else {
            return Ok(()); // A duplicate.
        };
        pay(&mut *idem.connection()?, message).await?;
        claim
            .record_effects(&[Effect::json("receipts", &message.cents)?])
            .await?;
        faults.reached(Point::BeforeCommit).await;
        idem.check().await?;
        Ok(())
    })
    .await
}

/// The work, with the query builder of the application.
pub async fn pay(conn: &mut AsyncPgConnection, message: &Message) -> Result<()> {
    let of_account = account::table.find(message.account);
    let updated = diesel::update(of_account)
        .set(account::balance.eq(account::balance - message.cents))
        .execute(conn)
        .await?;
    ensure!(updated == 1, "there is no such account");
    diesel::insert_into(payment::table)
        .values((
            payment::account.eq(message.account),
            payment::message.eq(&message.id),
            payment::cents.eq(message.cents),
        ))
        .execute(conn)
        .await?;
    Ok(())
}
