//! Only a claim creates the value that recording needs.

use tokio_postgres::Client;
use idem_client::{Claimed, Destination, Effect, Error, MessageId};

async fn forged(
    client: &Client,
    id: MessageId,
    destination: Destination,
    effects: &[Effect],
) -> Result<(), Error> {
    let claimed = Claimed {
        executor: client,
        id,
        destination,
    };
    claimed.record_effects(effects).await?;
    Ok(())
}

fn main() {
    let _ = forged;
}
