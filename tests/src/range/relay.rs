//! The relay of the range: takes effects from the outbox to the transport, and dies now and then
//! before it can say so.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use idem_client::ErrorKind;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{consumer::comes_again, message::Fact, session::Session, world::World};

/// How long a batch belongs to a relay that may have died: short, for another waits for it here.
const LEASE: Duration = Duration::from_millis(100);

/// How long to let the outbox be when it was empty.
const IDLE: Duration = Duration::from_millis(2);

/// Publishes until nobody can record anything more, or the transport pauses. `death` is the share
/// of batches that are published and not acknowledged.
pub async fn run(world: Arc<World>, seed: u64, death: f64) -> Result<()> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut session = Session::open(&world).await?;
    // Until then a relay that died, maybe before this one started, can hold effects that this one
    // does not see.
    let mut leased_until = Instant::now() + LEASE;
    loop {
        if world.transport.has_paused() {
            return Ok(());
        }
        // Looked at first: what is recorded before this is in the next batch.
        let is_quiet = world.transport.is_quiet();
        let dies = dice.random_bool(death);
        match publish_batch(&world, &session, dies).await {
            Ok(Batch::Acknowledged) => {}
            Ok(Batch::Forgotten) => leased_until = Instant::now() + 2 * LEASE,
            Ok(Batch::Empty) if is_quiet && Instant::now() > leased_until => {
                world.transport.relay_is_done();
                return Ok(());
            }
            Ok(Batch::Empty) => tokio::time::sleep(IDLE).await,
            Err(error) if comes_again(&error) => {
                session = Session::open(&world).await?;
                leased_until = Instant::now() + 2 * LEASE;
            }
            Err(error) => return Err(error),
        }
    }
}

enum Batch {
    Empty,
    Acknowledged,
    /// Published, and the outbox does not know: it comes again.
    Forgotten,
}

async fn publish_batch(world: &World, session: &Session, dies: bool) -> Result<Batch> {
    // Three steps, each a transaction of its own: take, publish, acknowledge.
    let batch = session
        .client
        .query_typed(
            "SELECT token, message_id, topic, payload FROM idem_relay_next($1, 0, 100, $2::interval)",
            &[(&world.relay, Type::TEXT), (&format!("{} ms", LEASE.as_millis()), Type::TEXT)],
        )
        .await?;
    let Some(first) = batch.first() else {
        return Ok(Batch::Empty);
    };
    for effect in &batch {
        // A relay sees every effect of the database; others than this trial's are not for this
        // transport.
        if effect.try_get::<_, &str>("topic")? == world.topic {
            let id: Uuid = effect.try_get("message_id")?;
            world.publish(Fact::published(id, effect.try_get("payload")?)?);
        }
    }
    if dies {
        return Ok(Batch::Forgotten);
    }
    let token: i64 = first.try_get("token")?;
    let acknowledged = session
        .client
        .query_typed(
            "SELECT idem_relay_ack($1, 0, $2)",
            &[(&world.relay, Type::TEXT), (&token, Type::INT8)],
        )
        .await
        .map_err(idem_client::Error::from);
    match acknowledged {
        Ok(_) => Ok(Batch::Acknowledged),
        // Too slow for the lease: the same effects come again.
        Err(error) if error.kind() == ErrorKind::NotClaimed => Ok(Batch::Forgotten),
        Err(error) => Err(error.into()),
    }
}
