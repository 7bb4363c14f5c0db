//! A service on Kafka. It consumes payments from the topic `payments`, books each payment once, and
//! sends receipts to the topic `receipts` through the outbox. A payment that it cannot parse is
//! rejected and published to the topic `payments.dead`. Several processes can run at the same time.
//! SIGTERM stops a process gracefully.
//!
//! Arguments: the connection string of the consumer, the connection string of the relay, the
//! brokers as `host:port` separated by commas, and a PEM file of the certificate authority that all
//! connections trust.

use std::{env, error::Error};

use idem_client::Effect;
use idem_kafka::{DeadLetter, KafkaConfig, KafkaPublisher, KafkaSource, KafkaSubscription};
use idem_runtime::{Consumer, Handled, Message, PoolConfig, Relay, Tx, terminated};
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize)]
struct Payment {
    account: i64,
    amount: i64,
}

/// Books a payment in the transaction that claimed its message. A payload that is not a `Payment`
/// is rejected.
async fn book(tx: Tx, message: Message) -> Handled {
    let payment: Payment = message.json()?;
    tx.execute(
        "INSERT INTO account (id, paid) VALUES ($1, $2) \
         ON CONFLICT (id) DO UPDATE SET paid = account.paid + $2",
        &[&payment.account, &payment.amount],
    )
    .await?;
    Ok(vec![
        Effect::json("receipts", &payment)?.key(payment.account.to_string()),
    ])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [consumer_database, relay_database, brokers, ca] = &arguments[..] else {
        return Err("required arguments: two connection strings, the brokers and a CA file".into());
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    // The pool has one connection for each concurrent message, and one spare connection.
    let consumer_pool = PoolConfig::parse(consumer_database)?
        .ca(ca)?
        .max_size(9)
        .build()?;
    let relay_pool = PoolConfig::parse(relay_database)?
        .ca(ca)?
        .max_size(2)
        .build()?;

    let kafka = KafkaConfig::new(brokers)
        .property("security.protocol", "ssl")
        .property("ssl.ca.location", ca);
    let payments = KafkaSubscription {
        dead_letter: DeadLetter::Topic("payments.dead".into()),
        ..KafkaSubscription::new("billing", ["payments"])
    };
    let consumer = Consumer::new(consumer_pool, KafkaSource::new(&kafka, &payments)?)
        .handle("billing.book", book)
        .concurrency(8);
    let relay = Relay::new(relay_pool, KafkaPublisher::new(&kafka)?);
    tokio::try_join!(consumer.run(terminated()), relay.run(terminated()))?;
    println!("stopped");
    Ok(())
}
