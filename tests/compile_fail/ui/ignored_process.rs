//! The result of processing must not be ignored: it contains the settlement for the broker.

#![deny(unused_must_use)]

use deadpool_postgres::Pool;
use idem_runtime::{Error, Idem, Message};

async fn ignored(idem: &Idem, pool: &Pool, message: &Message) -> Result<(), Error> {
    idem.process(pool, message, |_, _| async { Ok(vec![]) })
        .await?;
    let processed = idem
        .process(pool, message, |_, _| async { Ok(vec![]) })
        .await?;
    processed.settlement();
    idem.process_batch(pool, std::slice::from_ref(message), |_, _| async {
        Ok(vec![])
    })
    .await;
    Ok(())
}

fn main() {
    let _ = ignored;
}
