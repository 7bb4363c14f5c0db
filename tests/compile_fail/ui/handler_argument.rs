//! A handler takes only arguments that can be extracted from its message.

use idem_runtime::{Handled, State, Tx, extract};

struct Order;

async fn undecoded(_: Tx, _: Order) -> Handled {
    Ok(Vec::new())
}

async fn without_its_state(_: Tx, _: State<u32>) -> Handled {
    Ok(Vec::new())
}

fn main() {
    let _ = extract(undecoded);
    let _ = extract(without_its_state);
}
