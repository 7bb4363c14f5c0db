//! The three hard deeds with a journal: a card is charged, a parcel booked, a mail sent.

use anyhow::Result;
use deadpool_postgres::Pool;
use idem_client::{
    Effect, Handled, Message,
    journal::{OnUnknown, Unheard},
    lease::Work,
};

use super::{Post, Role, notes, outside::Outside};
use crate::stories::outside::{Booking, Order};

/// The note of a handler that was told that nobody knows what became of its call.
pub const UNKNOWN: &str = "unknown";

/// What the handlers work with.
#[derive(Clone)]
struct Desk {
    role: Role,
    pool: Pool,
    outside: Outside,
}

pub async fn run(role: Role, post: &Post) -> Result<()> {
    let pool = post.pool()?;
    let desk = Desk {
        role,
        pool: pool.clone(),
        outside: Outside::new(post.outside()?),
    };
    let handler = |work: Work, message: Message| desk.clone().handle(work, message);
    post.until_done(role, &pool, handler, |_| {}).await
}

impl Desk {
    async fn handle(self, work: Work, message: Message) -> Handled {
        let reference = message.message_id().unwrap_or_default().to_owned();
        match self.role {
            Role::Card => self.charge(&work, reference).await,
            Role::Carrier => self.book(&work, reference).await,
            _ => self.send(&work, reference).await,
        }
    }

    /// The gateway honours keys: whatever became of an earlier attempt, it is asked again.
    async fn charge(self, work: &Work, reference: String) -> Handled {
        let order = Order {
            reference,
            cents: 4_200,
        };
        let ask = |key: String| async move { self.outside.charge(&order, &key).await };
        let charge = work.calls().once("charge", &4_200, ask).await?;
        Ok(vec![Effect::json("charges", &charge)?])
    }

    /// The carrier does not, but it can be asked what it did.
    async fn book(self, work: &Work, reference: String) -> Handled {
        let booking = Booking { reference };
        let find = |_: Unheard| async {
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

    /// Nobody knows whether a mail was sent. One of the handlers sends it again then, the other one
    /// gives up.
    async fn send(self, work: &Work, reference: String) -> Handled {
        let (pool, subject) = (self.pool.clone(), reference.clone());
        let mail_again = |_: Unheard| async move {
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
