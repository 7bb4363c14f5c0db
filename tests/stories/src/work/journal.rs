//! Handlers that make external calls with a journal: they charge a card, book a parcel, or send a
//! mail.

use anyhow::Result;
use deadpool_postgres::Pool;
use idem_client::Effect;
use idem_runtime::{
    Handled, Message,
    journal::{OnUnknown, UnknownCall},
    lease::LeaseContext,
};

use super::{
    notes,
    outside::Outside,
    post::{Post, Role},
};
use crate::outside::Order;

/// The text of the note that a handler writes when the result of an earlier external call is
/// unknown.
pub const UNKNOWN: &str = "unknown";

/// The context of the handlers.
#[derive(Clone)]
struct HandlerContext {
    role: Role,
    pool: Pool,
    outside: Outside,
}

pub async fn run(role: Role, post: &Post) -> Result<()> {
    let pool = post.pool()?;
    let context = HandlerContext {
        role,
        pool: pool.clone(),
        outside: Outside::new(post.outside()?),
    };
    let handler = |work: LeaseContext, message: Message| context.clone().handle(work, message);
    post.until_done(role, &pool, handler, |_| {}).await
}

impl HandlerContext {
    async fn handle(self, work: LeaseContext, message: Message) -> Handled {
        let reference = message.message_id().unwrap_or_default().to_owned();
        match self.role {
            Role::Card => self.charge(&work, reference).await,
            Role::Carrier => self.book(&work, reference).await,
            _ => self.send(&work, reference).await,
        }
    }

    /// Charges a card. The gateway supports idempotency keys, so the request is repeated with the
    /// same key, whatever the result of an earlier attempt was.
    async fn charge(self, work: &LeaseContext, reference: String) -> Handled {
        let order = Order { reference };
        let request = |key: String| async move { self.outside.charge(&order, &key).await };
        let charge = work.calls().once("charge", &4_200, request).await?;
        Ok(vec![Effect::json("charges", &charge)?])
    }

    /// Books a parcel. The carrier has no idempotency keys, but it can be queried for an earlier
    /// booking.
    async fn book(self, work: &LeaseContext, reference: String) -> Handled {
        let booking = Order { reference };
        let find = |_: UnknownCall| async {
            notes::take(&self.pool, &booking.reference, UNKNOWN).await?;
            self.outside.find(&booking.reference).await
        };
        let book = |_| self.outside.book(&booking);
        let booked = work
            .calls()
            .once_or("book", &booking, OnUnknown::query(find), book)
            .await?;
        Ok(vec![Effect::json("bookings", &booked)?])
    }

    /// Sends a mail. The mail server cannot be queried, so the result of an earlier attempt can be
    /// unknown. Then role `Mail` sends the mail again, and role `MailOnce` fails.
    async fn send(self, work: &LeaseContext, reference: String) -> Handled {
        let (pool, subject) = (self.pool.clone(), reference.clone());
        let mail_again = |_: UnknownCall| async move {
            notes::take(&pool, &subject, UNKNOWN).await?;
            anyhow::Ok(None)
        };
        let on_unknown = match self.role {
            Role::MailOnce => OnUnknown::Fail,
            _ => OnUnknown::query(mail_again),
        };
        let outside = self.outside.clone();
        let send = |_| async { outside.send(&reference).await };
        let () = work
            .calls()
            .once_or("mail", &reference, on_unknown, send)
            .await?;
        Ok(vec![Effect::json("mails", &reference)?])
    }
}
