//! A service on NATS JetStream. It consumes payments from the subject `payments`, books each
//! payment once, and sends receipts to the subject `receipts` through the outbox. A payment that it
//! cannot parse is rejected and published to the subject `dead.payments`. Several processes can run
//! at the same time. SIGTERM stops a process gracefully.
//!
//! Arguments: the connection string of the consumer, the connection string of the relay, the URL of
//! NATS, and a PEM file of the certificate authority that all connections trust.

use std::{env, error::Error, path::PathBuf, time::Duration};

use async_nats::{
    ConnectOptions,
    jetstream::{
        self,
        consumer::{AckPolicy, pull},
        stream,
    },
};
use idem_client::Effect;
use idem_nats::{NatsConfig, NatsPublisher, NatsSource, NatsSubscription};
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
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [consumer_database, relay_database, server, ca] = &arguments[..] else {
        return Err(
            "required arguments: two connection strings, the URL of NATS and a CA file".into(),
        );
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    declare(server, ca).await?;
    // The pool has one connection for each concurrent message, and one spare connection.
    let consumer_pool = PoolConfig::parse(consumer_database)?
        .ca(ca)?
        .max_size(9)
        .build()?;
    let relay_pool = PoolConfig::parse(relay_database)?
        .ca(ca)?
        .max_size(2)
        .build()?;

    let config = NatsConfig {
        ca: Some(ca.into()),
        ..NatsConfig::new(server)
    };
    let payments = NatsSubscription {
        prefetch: 32,
        dead_letter: Some("dead.payments".into()),
        ..NatsSubscription::new("payments", "billing")
    };
    let source = NatsSource::new(config.clone(), payments);
    let consumer = Consumer::new(consumer_pool, source)
        .handle("billing.book", book)
        .concurrency(8);
    let relay = Relay::new(relay_pool, NatsPublisher::new(config));
    tokio::try_join!(consumer.run(terminated()), relay.run(terminated()))?;
    println!("stopped");
    Ok(())
}

/// Creates the streams and the durable consumer. In a larger system a deployment creates them.
async fn declare(server: &str, ca: &str) -> Result<(), Box<dyn Error>> {
    // The connections of idem select a crypto provider. This connection uses the default provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ConnectOptions::new()
        .require_tls(true)
        .add_root_certificates(PathBuf::from(ca));
    let context = jetstream::new(options.connect(server).await?);
    // The stream of the payments keeps only messages that are not acknowledged.
    let (work, all) = (
        stream::RetentionPolicy::WorkQueue,
        stream::RetentionPolicy::Limits,
    );
    for (name, subject, retention) in [
        ("payments", "payments", work),
        ("receipts", "receipts", all),
        ("dead", "dead.>", all),
    ] {
        let stream = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            retention,
            ..stream::Config::default()
        };
        context.get_or_create_stream(stream).await?;
    }
    let billing = pull::Config {
        durable_name: Some("billing".into()),
        ack_policy: AckPolicy::Explicit,
        // The time after which the messages of a process that died are redelivered.
        ack_wait: Duration::from_secs(30),
        // No limit: the consumer counts failures, and keeps messages that fail too often.
        max_deliver: -1,
        ..pull::Config::default()
    };
    let payments = context.get_stream("payments").await?;
    payments.get_or_create_consumer("billing", billing).await?;
    Ok(())
}
