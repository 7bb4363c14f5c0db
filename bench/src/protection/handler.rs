//! The transaction of one message, with each kind of protection.

use anyhow::{Result, ensure};
use deadpool_postgres::Pool;
use idem_client::{Destination, Effect};
use idem_runtime::{Idem, Message, Processed};
use serde::Deserialize;
use serde_json::Value;
use tokio_postgres::{Client, Statement, types::Json};
use uuid::Uuid;

use super::config::{Config, Flaw};
use super::steps::{Step, Steps, Watch};
use super::{Contestant, tables};
use crate::load::EFFECTS;
use crate::server::BUSINESS;
use crate::side::Side;

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
    steps: Steps,
}

impl Handler {
    /// Creates a handler. Its destination and its topic contain the name `run`.
    pub fn new(contestant: Contestant, config: &Config, run: &str) -> Result<Self> {
        let [event]: [Event; 1] = serde_json::from_str(EFFECTS)?;
        let topic = format!("cost.{run}.reserved");
        let effect = Effect::json(&topic, &event.payload)?
            .key(&event.key)
            .message_type(&event.message_type);
        let has_effect = config.outgoing && config.flaw != Some(Flaw::SkippedOutbox(contestant));
        Ok(Self {
            contestant,
            flaw: config.flaw,
            destination: Destination::new(format!("cost.{run}"))?,
            topic,
            event,
            effects: has_effect.then_some(effect).into_iter().collect(),
            idem: Idem::default(),
            steps: Steps::default(),
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

    /// Returns the times of the messages that were processed.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Processes a new message, whose business update changes this account.
    pub async fn process(&self, pool: &Pool, account: i32) -> Result<()> {
        let watch = Watch::start();
        match self.contestant {
            Contestant::BusinessAlone => self.alone(pool, account, &watch).await?,
            Contestant::ByHand => self.by_hand(pool, account, &watch).await?,
            Contestant::Idem => self.with_idem(pool, account, &watch).await?,
        }
        self.steps.add(watch);
        Ok(())
    }

    async fn alone(&self, pool: &Pool, account: i32, watch: &Watch) -> Result<()> {
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        let update = tx.prepare_cached(BUSINESS).await?;
        self.update(tx.client(), &update, account, watch).await?;
        tx.commit().await?;
        Ok(())
    }

    /// The transaction as an engineer would write it, without idem: claim, update, outgoing
    /// message. Each of these statements is prepared and waits for its reply.
    async fn by_hand(&self, pool: &Pool, account: i32, watch: &Watch) -> Result<()> {
        let id = Uuid::new_v4().to_string();
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        let claim = tx.prepare_cached(Side::HandWritten.claim_sql()).await?;
        let claimed = tx.execute(&claim, &[&id, &self.destination()]).await?;
        ensure!(claimed == 1, "the new message {id} is a duplicate");
        let update = tx.prepare_cached(BUSINESS).await?;
        self.update(tx.client(), &update, account, watch).await?;
        if !self.effects.is_empty() {
            let insert = tx.prepare_cached(tables::INSERT_OUTBOX).await?;
            let Event {
                key,
                message_type,
                payload,
            } = &self.event;
            tx.execute(&insert, &[&self.topic, key, message_type, &Json(payload)])
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The same transaction in a handler of idem.
    async fn with_idem(&self, pool: &Pool, account: i32, watch: &Watch) -> Result<()> {
        let message = Message::new("cost", "{}")
            .with_destination(self.destination.clone())
            .with_message_id(Uuid::new_v4().to_string());
        let processed = self
            .idem
            .process(pool, &message, |tx, _| async move {
                let update = tx.prepare_cached(BUSINESS).await?;
                self.update(&tx, &update, account, watch).await?;
                Ok(self.effects.clone())
            })
            .await?;
        ensure!(matches!(processed, Processed::New { .. }), "{processed:?}");
        Ok(())
    }

    /// Executes the business update, unless the flaw is that it is skipped.
    async fn update(
        &self,
        client: &Client,
        update: &Statement,
        account: i32,
        watch: &Watch,
    ) -> Result<()> {
        watch.lap(Step::Claim);
        if self.flaw != Some(Flaw::SkippedUpdate(self.contestant)) {
            client.execute(update, &[&account]).await?;
        }
        watch.lap(Step::Update);
        Ok(())
    }
}
