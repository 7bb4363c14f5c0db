//! The transaction of one message, with each kind of protection.

use anyhow::{Result, ensure};
use deadpool_postgres::Pool;
use idem_client::{Destination, Effect};
use idem_runtime::{Idem, Message, Processed};
use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::types::{Json, Type};
use uuid::Uuid;

use super::config::Flaw;
use super::{Contestant, tables};
use crate::load::EFFECTS;
use crate::server::BUSINESS;
use crate::side;

/// The outgoing message of each processed message.
#[derive(Deserialize)]
pub struct Event {
    key: String,
    #[serde(rename = "type")]
    message_type: String,
    payload: Value,
}

impl Event {
    /// Returns the number of bytes of the payload.
    pub fn bytes(&self) -> usize {
        self.payload.to_string().len()
    }
}

/// Processes messages for one contestant.
pub struct Handler {
    contestant: Contestant,
    flaw: Option<Flaw>,
    /// The destination of the claims.
    destination: Destination,
    /// The topic of the outgoing messages.
    topic: String,
    event: Event,
    effects: Vec<Effect>,
    idem: Idem,
}

impl Handler {
    /// Creates a handler. Its destination and its topic contain the name `run`.
    pub fn new(contestant: Contestant, flaw: Option<Flaw>, run: &str) -> Result<Self> {
        let [event]: [Event; 1] = serde_json::from_str(EFFECTS)?;
        let topic = format!("cost.{run}.reserved");
        let effect = Effect::json(&topic, &event.payload)?
            .key(&event.key)
            .message_type(&event.message_type);
        let has_effect = flaw != Some(Flaw::SkippedOutbox(contestant));
        Ok(Self {
            contestant,
            flaw,
            destination: Destination::new(format!("cost.{run}"))?,
            topic,
            event,
            effects: has_effect.then_some(effect).into_iter().collect(),
            idem: Idem::default(),
        })
    }

    /// Returns the destination of the claims.
    pub fn destination(&self) -> &str {
        self.destination.as_str()
    }

    /// Returns the topic of the outgoing messages.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the outgoing message.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Processes a new message, whose business update changes this account.
    pub async fn process(&self, pool: &Pool, account: i32) -> Result<()> {
        let id = Uuid::new_v4().to_string();
        match self.contestant {
            Contestant::Idem => self.with_idem(pool, id, account).await,
            _ => self.by_hand(pool, &id, account).await,
        }
    }

    /// The transaction as an engineer would write it, without idem: claim, update, outgoing
    /// message, in five statements.
    async fn by_hand(&self, pool: &Pool, id: &str, account: i32) -> Result<()> {
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        let claimed = tx
            .execute_typed(
                side::Side::HandWritten.claim_sql(),
                &[(&id, Type::TEXT), (&self.destination(), Type::TEXT)],
            )
            .await?;
        ensure!(claimed == 1, "the new message {id} is a duplicate");
        if self.updates() {
            tx.execute_typed(BUSINESS, &[(&account, Type::INT4)])
                .await?;
        }
        if !self.effects.is_empty() {
            tx.execute_typed(
                tables::INSERT_OUTBOX,
                &[
                    (&self.topic, Type::TEXT),
                    (&self.event.key, Type::TEXT),
                    (&self.event.message_type, Type::TEXT),
                    (&Json(&self.event.payload), Type::JSONB),
                ],
            )
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The same transaction in a handler of idem.
    async fn with_idem(&self, pool: &Pool, id: String, account: i32) -> Result<()> {
        let message = Message::new("cost", "{}")
            .with_destination(self.destination.clone())
            .with_message_id(id);
        let processed = self
            .idem
            .process(pool, &message, |tx, _| async move {
                if self.updates() {
                    tx.execute_typed(BUSINESS, &[(&account, Type::INT4)])
                        .await?;
                }
                Ok(self.effects.clone())
            })
            .await?;
        ensure!(matches!(processed, Processed::New { .. }), "{processed:?}");
        Ok(())
    }

    fn updates(&self) -> bool {
        self.flaw != Some(Flaw::SkippedUpdate(self.contestant))
    }
}
