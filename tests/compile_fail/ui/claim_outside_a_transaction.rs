//! A claim needs an open transaction. On a connection it would commit by itself, before the work.

use tokio_postgres::Client;
use idem_client::{Destination, Error, MessageId, try_claim};

async fn alone(client: &Client, id: &MessageId, to: &Destination) -> Result<bool, Error> {
    Ok(try_claim(client, id, to).await?.is_new())
}

fn main() {
    let _ = alone;
}
