//! A custom transport in about 30 lines. Channels of tokio replace the broker.
//!
//! Start it with the connection string of a database that has the extension:
//!
//! ```sh
//! cargo run -p idem-client --example own_transport -- "host=/run/postgresql user=postgres"
//! ```

use std::{env, error::Error};

use deadpool_postgres::{Config, Runtime};
use futures_util::{FutureExt, future::BoxFuture};
use idem_client::Effect;
use idem_runtime::{
    Consumer, Delivery, Message, OutgoingMessage, PublishError, Publisher, Receipt, Settlement,
    Source, Tx, transport::TransportError,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::NoTls;
use uuid::Uuid;

type Sender = UnboundedSender<Message>;

/// A source of messages. The sender returns messages to it.
struct Channel(UnboundedReceiver<Message>, Sender);

impl Source for Channel {
    async fn next(&mut self) -> Result<Option<Delivery>, TransportError> {
        let Some(message) = self.0.recv().await else {
            return Ok(None);
        };
        let back = Ticket(message.clone(), self.1.clone());
        Ok(Some(Delivery::new(message, back)))
    }
}

struct Ticket(Message, Sender);

impl Receipt for Ticket {
    fn settle(
        self: Box<Self>,
        settlement: Settlement,
    ) -> BoxFuture<'static, Result<(), TransportError>> {
        let told = match settlement {
            Settlement::Acknowledge => Ok(()),
            Settlement::Reject { reason } => {
                eprintln!("rejected: {reason}");
                Ok(())
            }
            // Retry, Release, and settlements of later versions: no message is lost.
            _ => self.1.send(self.0),
        };
        async move { Ok(told?) }.boxed()
    }
}

struct Out(Sender);

impl Publisher for Out {
    async fn publish(&self, out: &OutgoingMessage) -> Result<(), PublishError> {
        let message =
            Message::new(&*out.topic, out.payload.clone()).with_message_id(out.message_id);
        self.0
            .send(message)
            .map_err(|closed| PublishError::Unavailable(closed.into()))
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    item: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args()
        .nth(1)
        .ok_or("required argument: a connection string")?;
    let pool = Config {
        url: Some(url),
        ..Config::default()
    }
    .create_pool(Some(Runtime::Tokio1), NoTls)?;

    // A relay would publish this message. It is published twice, as if the relay crashed before it
    // acknowledged the effect.
    let (sender, receiver) = unbounded_channel();
    let order = OutgoingMessage::new(Uuid::new_v4(), "orders", r#"{"item": "tea"}"#);
    let publisher = Out(sender.clone());
    publisher.publish(&order).await?;
    publisher.publish(&order).await?;

    let (done, mut reserved) = unbounded_channel();
    let reserve = move |_tx: Tx, message: Message| {
        let done = done.clone();
        async move {
            // Business writes use the transaction. This handler has no writes, only one effect.
            let order: Order = message.json()?;
            let effect = Effect::json("stock", &order)?;
            done.send(order.item)?;
            Ok(vec![effect])
        }
    };
    // A service would use `terminated()`. This example ends after the last order.
    let shutdown = async {
        let last = OutgoingMessage::new(Uuid::new_v4(), "orders", r#"{"item": "the last one"}"#);
        let _ = publisher.publish(&last).await;
        while let Some(item) = reserved.recv().await {
            println!("reserved {item}");
            if item == "the last one" {
                break;
            }
        }
    };
    let summary = Consumer::new(pool, Channel(receiver, sender))
        .handle("example.own-transport", reserve)
        .run(shutdown)
        .await?;
    println!(
        "{} handled, {} duplicate",
        summary.handled, summary.duplicates
    );
    assert_eq!((summary.handled, summary.duplicates), (2, 1));
    Ok(())
}
