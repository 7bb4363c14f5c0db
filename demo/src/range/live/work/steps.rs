//! Sends numbered steps through the outbox. Within a key, the number increases with each commit.

use std::time::Duration;

use anyhow::Result;
use idem_client::{Effect, send};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, types::Type};

use super::sessions::repeat;
use crate::range::live::{place::STEPS, post::Post};

/// The number of sessions. Each session has its own key, so that the commits of a key are
/// sequential.
const SESSIONS: usize = 4;

const PAUSE: Duration = Duration::from_millis(150);

/// The payload of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub key: i32,
    /// The number of the step within its key, from 1.
    pub n: i64,
}

pub async fn run(post: &Post) -> Result<()> {
    repeat(post, SESSIONS, async move |client: &mut Client, session| {
        take(client, i32::try_from(session)?).await?;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    })
    .await
}

async fn take(client: &mut Client, key: i32) -> Result<()> {
    let tx = client.transaction().await?;
    // An earlier session of this key may still be committing. The UPDATE waits for the row lock of
    // that session.
    let n: i64 = tx
        .query_typed_one(
            "UPDATE step SET n = n + 1 WHERE key = $1 RETURNING n",
            &[(&key, Type::INT4)],
        )
        .await?
        .try_get(0)?;
    let step = Effect::json(STEPS, &Step { key, n })?.key(key.to_string());
    send(&tx, &step).await?;
    Ok(tx.commit().await?)
}
