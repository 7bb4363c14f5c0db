//! A handler is an async function of a transaction and a message.

use idem_runtime::{Consumer, Handled, Source, Tx};

async fn reserve(_: Tx, _: u64) -> Handled {
    Ok(Vec::new())
}

fn with_handler<S: Source>(consumer: Consumer<S>) -> Consumer<S> {
    consumer
        .handle("orders", reserve)
        .handle("orders", |message| async move { Ok(vec![]) })
}

fn main() {}
