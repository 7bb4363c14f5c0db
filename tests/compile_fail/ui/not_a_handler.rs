//! A handler is an async function with the result `Handled`, and `extract` makes a handler from a
//! function with other arguments than the message.

use idem_runtime::{Consumer, Error, Handled, Json, Source, Tx, extract};

async fn without_effects(_: Tx, _: Json<u64>) -> Result<(), Error> {
    Ok(())
}

fn not_async(_: Tx, _: Json<u64>) -> Handled {
    Ok(Vec::new())
}

async fn reserve(_: Tx, _: Json<u64>) -> Handled {
    Ok(Vec::new())
}

fn with_handler<S: Source>(consumer: Consumer<S>) -> Consumer<S> {
    consumer
        .handle("orders", reserve)
        .handle("orders", |message| async move { Ok(vec![]) })
}

fn main() {
    let _ = extract(without_effects);
    let _ = extract(not_async);
}
