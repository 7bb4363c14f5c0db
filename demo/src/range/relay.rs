//! The relay of the range, which publishes effects from the outbox to the transport. A fault can
//! stop the relay before it acknowledges a batch.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use idem_client::ErrorKind;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{consumer::comes_again, message::Fact, session::Session, trial_state::TrialState};

/// The lease of a batch. It is short, because the range waits for the leases of killed relays.
const LEASE: Duration = Duration::from_millis(100);

/// The pause after the outbox was empty.
const IDLE: Duration = Duration::from_millis(2);

/// Publishes effects until no consumer can record another effect, or until the transport is paused.
/// `death` is the share of batches, from 0 to 1, that are published and not acknowledged.
pub async fn run(state: Arc<TrialState>, seed: u64, death: f64) -> Result<()> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut session = Session::open(&state).await?;
    // A relay that was killed, also in an earlier part of the trial, can still hold a lease on
    // effects. Until the end of that lease, this relay cannot read these effects.
    let mut leased_until = Instant::now() + LEASE;
    loop {
        if state.transport.has_paused() {
            return Ok(());
        }
        // `is_quiet` is read before the batch is fetched. If it is true, all effects are committed,
        // so an empty batch means that no effect is left.
        let is_quiet = state.transport.is_quiet();
        let dies = dice.random_bool(death);
        match publish_batch(&state, &session, dies).await {
            Ok(Batch::Acknowledged) => {}
            Ok(Batch::Forgotten) => leased_until = Instant::now() + 2 * LEASE,
            Ok(Batch::Empty) if is_quiet && Instant::now() > leased_until => {
                state.transport.relay_is_done();
                return Ok(());
            }
            Ok(Batch::Empty) => tokio::time::sleep(IDLE).await,
            Err(error) if comes_again(&error) => {
                session = Session::open(&state).await?;
                leased_until = Instant::now() + 2 * LEASE;
            }
            Err(error) => return Err(error),
        }
    }
}

enum Batch {
    Empty,
    Acknowledged,
    /// The batch was published but not acknowledged, so it is delivered again.
    Forgotten,
}

async fn publish_batch(state: &TrialState, session: &Session, dies: bool) -> Result<Batch> {
    // Three steps: fetch, publish, acknowledge. The first and the last are separate transactions.
    let batch = session
        .client
        .query_typed(
            "SELECT token, message_id, topic, payload
             FROM idem_relay_next($1, 0, 100, $2::interval)",
            &[
                (&state.relay, Type::TEXT),
                (&format!("{} ms", LEASE.as_millis()), Type::TEXT),
            ],
        )
        .await?;
    let Some(first) = batch.first() else {
        return Ok(Batch::Empty);
    };
    for effect in &batch {
        // A relay reads every effect of the database. Only the effects of this trial are published
        // to the transport.
        if effect.try_get::<_, &str>("topic")? == state.topic {
            let id: Uuid = effect.try_get("message_id")?;
            state.publish(Fact::published(id, effect.try_get("payload")?)?);
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
            &[(&state.relay, Type::TEXT), (&token, Type::INT8)],
        )
        .await
        .map_err(idem_client::Error::from);
    match acknowledged {
        Ok(_) => Ok(Batch::Acknowledged),
        // The lease has expired, so a relay reads the same effects again.
        Err(error) if error.kind() == ErrorKind::NotClaimed => Ok(Batch::Forgotten),
        Err(error) => Err(error.into()),
    }
}
