//! A consumer: takes deliveries until there are none, dies now and then, and is started anew.

use std::sync::Arc;

use anyhow::Result;
use idem_client::ErrorKind;

use super::{
    handlers::{self, Desk},
    hazard::{Hazard, Killed},
    session::Session,
    world::World,
};

/// Works until the transport has nothing more or pauses. An error that no new attempt can mend ends
/// the trial.
pub async fn run(world: Arc<World>) -> Result<()> {
    let mut session = Session::open(&world).await?;
    while let Some(delivery) = world.transport.next().await {
        let hazard = Hazard::new(delivery.fate.kill, &session, &world);
        let handled = handlers::handle(
            &mut Desk {
                client: &mut session.client,
                world: &world,
                hazard,
            },
            &delivery.message,
        )
        .await;
        match handled {
            Ok(()) => world.transport.acknowledge(delivery),
            Err(error) if comes_again(&error) => {
                world.transport.give_back(delivery);
                // A dead process has no connection, and its transactions are not ended politely.
                session.line.abort();
                session = Session::open(&world).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the consumer died or its transaction lost: either way the message was not acknowledged
/// and comes again.
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
