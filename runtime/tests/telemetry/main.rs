//! Tests of observability: traces that continue from message to message, and metrics.
//!
//! Each test runs on one thread, and sets its recorder of metrics for this thread only.

mod metrics;
mod traces;

use std::sync::Mutex;

use idem_runtime::{OutgoingMessage, PublishError, Publisher};
use tokio::sync::mpsc;

/// A publisher that confirms an effect, or fails if the topic requests a failure.
struct Broker(Mutex<mpsc::UnboundedSender<OutgoingMessage>>);

impl Broker {
    fn new() -> (Self, mpsc::UnboundedReceiver<OutgoingMessage>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(Mutex::new(sender)), receiver)
    }
}

impl Publisher for Broker {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        match message.topic.as_str() {
            "rejected" => Err(PublishError::Rejected("full".into())),
            "permanent" => Err(PublishError::Permanent("no such topic".into())),
            _ => {
                self.0.lock().unwrap().send(message.clone()).unwrap();
                Ok(())
            }
        }
    }
}
