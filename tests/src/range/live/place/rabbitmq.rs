//! The queues of RabbitMQ: both kinds of messages go through one exchange, each by its own routing key.

use anyhow::Result;
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

use super::{COMMANDS, DEAD, FACTS, Queue};

/// Where everything is published.
pub const EXCHANGE: &str = "range";

/// Makes exchange and queues, all of which outlive the broker's death.
pub async fn make(url: &str) -> Result<()> {
    let (connection, channel) = open(url).await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let exchange = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, exchange, FieldTable::default())
        .await?;
    channel.queue_declare(DEAD.into(), durable, FieldTable::default()).await?;
    for queue in Queue::ALL {
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(DEAD.into()));
        channel.queue_declare(queue.name().into(), durable, arguments).await?;
        let key = if queue == Queue::Commands { COMMANDS } else { FACTS };
        channel
            .queue_bind(
                queue.name().into(),
                EXCHANGE.into(),
                key.into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
    }
    Ok(connection.close(200, "done".into()).await?)
}

/// How many messages lie in a queue, without those that a consumer has in hand.
pub async fn waiting(url: &str, queue: &str) -> Result<u64> {
    let (connection, channel) = open(url).await?;
    let look = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare(queue.into(), look, FieldTable::default()).await?;
    connection.close(200, "done".into()).await?;
    Ok(u64::from(queue.message_count()))
}

async fn open(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}
