//! A pool does not execute statements. A connection of the pool does.

use deadpool_postgres::Pool;
use idem_client::{Destination, Error, MessageId, is_claimed};

async fn on_a_pool(pool: &Pool, id: &MessageId, to: &Destination) -> Result<bool, Error> {
    is_claimed(pool, id, to).await
}

fn main() {
    let _ = on_a_pool;
}
