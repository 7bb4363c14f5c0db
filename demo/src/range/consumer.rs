//! A consumer, which handles deliveries until none is left. A fault can kill the consumer. It then
//! restarts with a new connection.

use std::sync::Arc;

use anyhow::Result;
use idem_client::ErrorKind;

use super::{
    handlers::{self, HandlerContext},
    hazard::{Hazard, Killed},
    session::Session,
    trial_state::TrialState,
};

/// Handles deliveries until the transport is drained or paused.
///
/// Returns an error, which ends the trial, when a redelivery would also fail.
pub async fn run(state: Arc<TrialState>) -> Result<()> {
    let mut session = Session::open(&state).await?;
    while let Some(delivery) = state.transport.next().await {
        let hazard = Hazard::new(delivery.fate.kill, &session, &state);
        let handled = handlers::handle(
            &mut HandlerContext {
                client: &mut session.client,
                state: &state,
                hazard,
            },
            &delivery.message,
        )
        .await;
        match handled {
            Ok(()) => state.transport.acknowledge(delivery),
            Err(error) if comes_again(&error) => {
                state.transport.give_back(delivery);
                // A killed process loses its connection and does not send a rollback, so the
                // connection is aborted here.
                session.line.abort();
                session = Session::open(&state).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns whether the consumer was killed or its transaction failed with an error that can be
/// retried. In both cases the message was not acknowledged and is redelivered.
pub fn comes_again(error: &anyhow::Error) -> bool {
    if error.is::<Killed>() {
        return true;
    }
    if let Some(error) = error.downcast_ref::<idem_client::Error>() {
        return error.is_retryable();
    }
    error
        .downcast_ref::<tokio_postgres::Error>()
        .is_some_and(|error| ErrorKind::of(error).is_retryable())
}
