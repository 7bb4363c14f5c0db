//! Tests of the Kafka adapter.
//!
//! This program starts no process. When a test stops a broker, the mock closes its socket and binds
//! its port again. A child process that another thread starts has a copy of the socket until it
//! executes its program, and the port is in use that long.

#[path = "../mock/mod.rs"]
mod mock;
mod publisher;
mod settling;

use std::time::Duration;

use idem_runtime::Delivery;
use mock::{Kafka, PATIENCE, number};
use tokio::time::{Instant, sleep};

impl Kafka {
    /// Asserts that the group commits this offset in time.
    async fn assert_committed(&self, offset: i64) {
        let deadline = Instant::now() + PATIENCE;
        while self.committed() != Some(offset) {
            assert!(
                Instant::now() < deadline,
                "committed {:?}, not {offset}",
                self.committed()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn numbers(deliveries: &[Delivery]) -> Vec<u32> {
    deliveries
        .iter()
        .map(|delivery| number(delivery.message()))
        .collect()
}
