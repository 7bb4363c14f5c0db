//! A service on RabbitMQ: it takes payments from the queue `payments`, books each once, and sends receipts to the queue
//! `receipts` through the outbox. Run as many as you like.
//!
//! `cargo run -p idem-client --features rabbitmq --example rabbitmq_service -- "host=/run/postgresql user=postgres"
//! amqp://127.0.0.1:5672`, in a database with the extension. SIGTERM ends it in order.

use std::env;

use deadpool_postgres::{Config, Pool, Runtime};
use idem_client::{
    Consumer, Effect, Handled, HandlerError, Message, RabbitMqConfig, RabbitMqPublisher, RabbitMqSource, RabbitMqSubscription,
    Relay, Services, Tx, terminated,
};
use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

#[derive(Deserialize, Serialize)]
struct Payment {
    account: i64,
    amount: i64,
}

/// Books a payment, in the transaction that claimed its message.
async fn book(tx: Tx, message: Message) -> Handled {
    // A payload that cannot be read will never be readable: it goes to the dead letters at once.
    let payment: Payment = message.json().map_err(HandlerError::terminal)?;
    tx.execute(
        "INSERT INTO account (id, paid) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET paid = account.paid + $2",
        &[&payment.account, &payment.amount],
    )
    .await?;
    Ok(vec![Effect::json("receipts", &payment)?.key(payment.account.to_string())])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(database), Some(broker)) = (arguments.next(), arguments.next()) else {
        return Err("give a connection string and the URL of the broker".into());
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let pool = Config {
        url: Some(database),
        ..Config::default()
    }
    .create_pool(Some(Runtime::Tokio1), NoTls)?;
    prepare(&pool, &broker).await?;

    let config = RabbitMqConfig::new(broker);
    let source = RabbitMqSource::new(config.clone(), RabbitMqSubscription::new("payments").prefetch(32));
    let consumer = Consumer::new(pool.clone(), source)
        .handle("billing.book", book)
        .concurrency(8);
    let relay = Relay::new(pool, RabbitMqPublisher::new(config));
    Services::new().consumer(consumer).relay(relay).run(terminated()).await?;
    println!("stopped");
    Ok(())
}

/// The table and the queues; in a real service a migration makes them.
async fn prepare(pool: &Pool, broker: &str) -> Result<(), Box<dyn std::error::Error>> {
    pool.get()
        .await?
        .batch_execute("CREATE TABLE IF NOT EXISTS account (id int8 PRIMARY KEY, paid int8 NOT NULL)")
        .await?;
    let connection = Connection::connect(broker, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    for queue in ["payments", "receipts"] {
        channel.queue_declare(queue.into(), durable, FieldTable::default()).await?;
    }
    connection.close(200, "prepared".into()).await?;
    Ok(())
}
