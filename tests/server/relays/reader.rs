//! A relay process for tests, which works in three steps: lease the next batch, publish it,
//! acknowledge it.

use anyhow::Result;
use idem_testkit::{Database, Session};
use uuid::Uuid;

/// An effect as a relay reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub seq: i64,
    pub message_id: Uuid,
    pub key: Option<String>,
    /// The text in the payload.
    pub says: String,
}

/// Effects that are leased together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub token: i64,
    pub effects: Vec<Effect>,
}

impl Batch {
    pub fn says(&self) -> Vec<&str> {
        self.effects
            .iter()
            .map(|effect| effect.says.as_str())
            .collect()
    }

    pub fn ids(&self) -> Vec<Uuid> {
        self.effects
            .iter()
            .map(|effect| effect.message_id)
            .collect()
    }
}

/// A process that reads one partition of a relay.
pub struct Reader {
    pub session: Session,
    relay: String,
    partition: i32,
    limit: i32,
    lease: &'static str,
}

impl Reader {
    /// Connects a reader of partition 0. The reader leases at most a hundred effects at a time. Its
    /// leases are so long that no lease expires during a test.
    pub async fn of(db: &Database, relay: &str) -> Result<Self> {
        Ok(Self::with(db.connect().await?, relay))
    }

    pub fn with(session: Session, relay: &str) -> Self {
        Self {
            session,
            relay: relay.to_owned(),
            partition: 0,
            limit: 100,
            lease: "1 hour",
        }
    }

    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = partition;
        self
    }

    pub fn limit(mut self, limit: i32) -> Self {
        self.limit = limit;
        self
    }

    pub fn lease(mut self, lease: &'static str) -> Self {
        self.lease = lease;
        self
    }

    /// Leases the next batch. Returns `None` when there is no batch.
    pub async fn next(&self) -> Result<Option<Batch>> {
        let rows = self
            .session
            .query(
                "SELECT token, seq, message_id, key, convert_from(payload, 'UTF8')::jsonb #>> '{}' \
                 FROM idem_relay_next($1, $2, $3, $4::text::interval)",
                &[&self.relay, &self.partition, &self.limit, &self.lease],
            )
            .await?;
        let effects = rows.iter().map(|row| Effect {
            seq: row.get(1),
            message_id: row.get(2),
            key: row.get(3),
            says: row.get(4),
        });
        Ok(rows.first().map(|first| Batch {
            token: first.get(0),
            effects: effects.collect(),
        }))
    }

    /// Leases the next batch. Fails when there is no batch.
    pub async fn batch(&self) -> Result<Batch> {
        self.next()
            .await?
            .ok_or_else(|| anyhow::anyhow!("relay {} has no batch", self.relay))
    }

    /// Acknowledges the batch that was leased under this token.
    pub async fn ack(&self, token: i64) -> Result<()> {
        self.session
            .execute(
                "SELECT idem_relay_ack($1, $2, $3)",
                &[&self.relay, &self.partition, &token],
            )
            .await?;
        Ok(())
    }

    /// Extends the lease on a batch to `lease` from now on. Returns the new token.
    pub async fn extend(&self, token: i64, lease: &str) -> Result<i64> {
        let row = self
            .session
            .query_one(
                "SELECT idem_relay_extend($1, $2, $3, $4::text::interval)",
                &[&self.relay, &self.partition, &token, &lease],
            )
            .await?;
        Ok(row.get(0))
    }

    /// Leases and acknowledges batches until no batch is left. Returns the effects in the order in
    /// which they were leased.
    pub async fn drain(&self) -> Result<Vec<Effect>> {
        let mut published = Vec::new();
        while let Some(batch) = self.next().await? {
            self.ack(batch.token).await?;
            published.extend(batch.effects);
        }
        Ok(published)
    }

    /// The same as [`Reader::drain`], but returns only the texts of the effects.
    pub async fn drained(&self) -> Result<Vec<String>> {
        Ok(self
            .drain()
            .await?
            .into_iter()
            .map(|effect| effect.says)
            .collect())
    }
}

/// Sends an effect with this text in the current transaction of the session, if there is one.
/// Returns the message id.
pub async fn send(session: &Session, says: &str) -> Result<Uuid> {
    let row = session
        .query_one("SELECT idem_send('things', to_jsonb($1::text))", &[&says])
        .await?;
    Ok(row.get(0))
}

/// The same as [`send`], with a key.
pub async fn send_key(session: &Session, key: &str, says: &str) -> Result<Uuid> {
    let row = session
        .query_one(
            "SELECT idem_send('things', to_jsonb($1::text), $2)",
            &[&says, &key],
        )
        .await?;
    Ok(row.get(0))
}
