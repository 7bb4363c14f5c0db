//! A service on NATS JetStream: it takes payments from the subject `payments`, books each once, and
//! sends receipts to the subject `receipts` through the outbox. A payment that it cannot read goes
//! to the subject `dead.payments`. Start as many processes as you like. SIGTERM ends them in order.
//!
//! Arguments: the consumer's database, the relay's database, the URL of NATS, and the certificate
//! of the authority that all of them are verified with.

use std::{env, error::Error, path::PathBuf, time::Duration};

use async_nats::{
    ConnectOptions,
    jetstream::{
        self,
        consumer::{AckPolicy, pull},
        stream,
    },
};
use idem_client::{
    Consumer, Effect, Handled, HandlerError, Message, NatsConfig, NatsPublisher, NatsSource,
    NatsSubscription, PoolConfig, Relay, Services, Tx, terminated,
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize)]
struct Payment {
    account: i64,
    amount: i64,
}

/// Books a payment, in the transaction that claimed its message.
async fn book(tx: Tx, message: Message) -> Handled {
    // A payload that cannot be read will never be readable: it is rejected at once.
    let payment: Payment = message.json().map_err(HandlerError::terminal)?;
    tx.execute(
        "INSERT INTO account (id, paid) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET paid = account.paid + $2",
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
            "give two connection strings, the URL of NATS and a file of authorities".into(),
        );
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    declare(server, ca).await?;
    // One connection for each message that is handled at a time, and one to spare.
    let consumer_pool = PoolConfig::parse(consumer_database)?
        .ca(ca)?
        .max_size(9)
        .build()?;
    let relay_pool = PoolConfig::parse(relay_database)?
        .ca(ca)?
        .max_size(2)
        .build()?;

    let config = NatsConfig::new(server).ca(ca);
    let payments = NatsSubscription::new("payments", "billing")
        .prefetch(32)
        .dead_letter("dead.payments");
    let source = NatsSource::new(config.clone(), payments);
    let consumer = Consumer::new(consumer_pool, source)
        .handle("billing.book", book)
        .concurrency(8);
    let relay = Relay::new(relay_pool, NatsPublisher::new(config));
    Services::new()
        .consumer(consumer)
        .relay(relay)
        .run(terminated())
        .await?;
    println!("stopped");
    Ok(())
}

/// The streams and the durable consumer. In a larger system a deployment makes them.
async fn declare(server: &str, ca: &str) -> Result<(), Box<dyn Error>> {
    // The connections of idem name their provider of cryptography. This one uses the default.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ConnectOptions::new()
        .require_tls(true)
        .add_root_certificates(PathBuf::from(ca));
    let context = jetstream::new(options.connect(server).await?);
    // Of the payments, the stream keeps only what is not acknowledged.
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
        // How long a message waits for another process when this one dies.
        ack_wait: Duration::from_secs(30),
        // No limit: the consumer counts failures and keeps what fails too often.
        max_deliver: -1,
        ..pull::Config::default()
    };
    let payments = context.get_stream("payments").await?;
    payments.get_or_create_consumer("billing", billing).await?;
    Ok(())
}
