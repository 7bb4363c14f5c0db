//! The RabbitMQ exchanges and queues of a run.
//!
//! ```text
//! exchange range ──range.commands──► queue range.commands
//!                ──range.facts────► exchange range.facts ──► the queue of each consumer
//!                ──range.letters, range.steps──► exchange range.log ──► queue range.log
//! ```
//!
//! The effects have their own exchanges, so that one binding routes a fact to the queues of all
//! consumers. A campaign removes and adds these bindings. So each fact reaches all of these queues
//! or none of them.

use anyhow::{Context, Result, ensure};
use idem_brokers::RabbitMq;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions,
        ExchangeDeclareOptions, ExchangeUnbindOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};

use super::queue::{COMMANDS, FACTS, LETTERS, LOG, Logged, Queue, QueueState, STEPS};

/// The exchange to which all messages are published.
pub const EXCHANGE: &str = "range";

/// The exchanges that receive the effects, each with a topic.
const EFFECTS: [(&str, &str); 3] = [(FACTS, FACTS), (LOG, LETTERS), (LOG, STEPS)];

/// Creates exchanges and queues, all of which survive a crash of the broker.
pub async fn make(url: &str, queues: &[Queue]) -> Result<()> {
    let (connection, channel) = open(url).await?;
    for (exchange, kind) in [
        (EXCHANGE, ExchangeKind::Topic),
        (FACTS, ExchangeKind::Fanout),
        (LOG, ExchangeKind::Fanout),
    ] {
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(exchange.into(), kind, durable, FieldTable::default())
            .await?;
    }
    for queue in queues {
        let (name, durable) = (queue.name(), QueueDeclareOptions::durable());
        channel
            .queue_declare(name.into(), durable, arguments(*queue, queues)?)
            .await?;
        let (exchange, key) = match queue {
            Queue::Commands => (EXCHANGE, COMMANDS),
            _ => (queue.subject(), ""),
        };
        let (options, table) = (QueueBindOptions::default(), FieldTable::default());
        channel
            .queue_bind(name.into(), exchange.into(), key.into(), options, table)
            .await?;
    }
    bind(&channel, true).await?;
    Ok(connection.close(200, "done".into()).await?)
}

/// Returns the arguments of a queue. A campaign has quorum queues, and a lazy queue for the log.
fn arguments(queue: Queue, queues: &[Queue]) -> Result<FieldTable> {
    let mut arguments = FieldTable::default();
    if queue == Queue::Log {
        arguments.insert("x-queue-mode".into(), AMQPValue::LongString("lazy".into()));
    } else if queues.contains(&Queue::Log) {
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("quorum".into()),
        );
        // Since version 4.0 a queue has a default limit of deliveries, which -1 removes. Older
        // versions would use -1 as the limit.
        if RabbitMq::version()?.0 >= 4 {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(-1));
        }
    }
    Ok(arguments)
}

/// Binds the exchanges of the effects, or removes these bindings.
async fn bind(channel: &Channel, are_there: bool) -> Result<()> {
    for (exchange, topic) in EFFECTS {
        let (from, table) = (EXCHANGE.into(), FieldTable::default());
        if are_there {
            let options = ExchangeBindOptions::default();
            channel
                .exchange_bind(exchange.into(), from, topic.into(), options, table)
                .await?;
        } else {
            let options = ExchangeUnbindOptions::default();
            channel
                .exchange_unbind(exchange.into(), from, topic.into(), options, table)
                .await?;
        }
    }
    Ok(())
}

/// Removes the bindings of the effects, or adds them again.
pub async fn set_topics(url: &str, are_there: bool) -> Result<()> {
    let (connection, channel) = open(url).await?;
    bind(&channel, are_there).await?;
    Ok(connection.close(200, "done".into()).await?)
}

/// Returns the version that is installed.
pub fn version() -> Result<String> {
    let (major, minor) = RabbitMq::version()?;
    Ok(format!("{major}.{minor}"))
}

/// Sends a command that has no id.
pub async fn send_without_id(url: &str, payload: &[u8]) -> Result<()> {
    let (connection, channel) = open(url).await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let (options, properties) = (
        BasicPublishOptions::default(),
        BasicProperties::default().with_delivery_mode(2),
    );
    let confirmation = channel
        .basic_publish(
            EXCHANGE.into(),
            COMMANDS.into(),
            options,
            payload,
            properties,
        )
        .await?
        .await?;
    ensure!(
        confirmation.is_ack(),
        "the broker rejected a command without an id"
    );
    Ok(connection.close(200, "done".into()).await?)
}

/// Removes all messages from the log and returns them.
pub async fn read_log(url: &str) -> Result<Vec<Logged>> {
    let (connection, channel) = open(url).await?;
    let mut logged = Vec::new();
    while let Some(message) = channel
        .basic_get(Queue::Log.name().into(), BasicGetOptions { no_ack: true })
        .await?
    {
        let id = message.properties.message_id().as_ref();
        logged.push(Logged {
            topic: message.routing_key.to_string(),
            message_id: id
                .context("an effect in the log has no message id")?
                .to_string(),
            payload: message.delivery.data,
        });
    }
    connection.close(200, "done".into()).await?;
    Ok(logged)
}

/// Returns the state of a queue. Its messages are those that are not delivered to a consumer.
pub async fn state(url: &str, queue: &str) -> Result<QueueState> {
    let (connection, channel) = open(url).await?;
    let look = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel
        .queue_declare(queue.into(), look, FieldTable::default())
        .await?;
    connection.close(200, "done".into()).await?;
    Ok(QueueState {
        messages: u64::from(queue.message_count()),
        consumers: u64::from(queue.consumer_count()),
    })
}

async fn open(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}
