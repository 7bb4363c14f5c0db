//! Publishes the outbox to a broker.

fn main() {}
