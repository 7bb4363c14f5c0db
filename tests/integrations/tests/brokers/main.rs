//! Tests of sources and publishers on real brokers from Debian packages.

mod counting;
mod environment;
mod held;
mod line;
mod nats;
mod one_connection;
mod rabbitmq;
mod rejected;
mod traffic;
mod unserved;
mod withheld;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::{Delivery, OutgoingMessage, PublishError, Publisher, Source};
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

/// The longest time to wait for one event. A broker restarts faster than this, even on a busy
/// machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Returns an effect with every optional property set.
fn whole(topic: &str) -> OutgoingMessage {
    let mut effect = OutgoingMessage::new(Uuid::new_v4(), topic, r#"{"order": 4711}"#);
    effect.key = Some("customer-7".into());
    effect.message_type = Some("order.placed".into());
    effect.content_type = Some("application/json".into());
    effect.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    effect.source_destination = Some("orders.accept".into());
    effect.headers.insert("attempt".into(), json!(3));
    effect
        .headers
        .insert("correlation-id".into(), json!("conversation-1"));
    effect
        .headers
        .insert("count".into(), json!({"n": [1, true]}));
    // A header with the name `message-id` must not replace the real message id.
    effect.headers.insert("message-id".into(), json!("forged"));
    effect
}

fn assert_whole(delivery: &Delivery, effect: &OutgoingMessage) {
    let message = delivery.message();
    assert_eq!(
        message.message_id(),
        Some(effect.message_id.to_string().as_str())
    );
    assert_eq!(message.topic(), effect.topic);
    assert_eq!(message.payload(), &effect.payload.0);
    assert_eq!(message.key(), effect.key.as_deref());
    assert_eq!(message.message_type(), effect.message_type.as_deref());
    assert_eq!(message.content_type(), effect.content_type.as_deref());
    assert_eq!(message.correlation_id(), Some("conversation-1"));
    assert_eq!(message.header("attempt"), Some("3"));
    assert_eq!(message.header("count"), Some(r#"{"n":[1,true]}"#));
    assert_eq!(message.header("traceparent"), effect.traceparent.as_deref());
    assert_eq!(
        message.header("idem-source-destination"),
        Some("orders.accept")
    );
    let age = OffsetDateTime::now_utc() - message.sent_at().expect("no time of sending");
    assert!(age.unsigned_abs() < DEADLINE, "sent {age} ago");
    let recorded_at = effect.recorded_at.format(&Rfc3339).unwrap();
    assert_eq!(message.header("idem-recorded-at"), Some(&*recorded_at));
    assert_eq!(message.deliveries(), Some(1));
}

/// Returns an effect with this text as its payload and no optional properties.
fn plain(topic: &str, text: &str) -> OutgoingMessage {
    OutgoingMessage::new(Uuid::new_v4(), topic, text.to_owned())
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message().payload().to_vec()).unwrap()
}

/// Returns the next delivery. Errors of an unavailable broker are retried until `DEADLINE`.
async fn next(source: &mut impl Source) -> Delivery {
    let started = Instant::now();
    loop {
        let error = match tokio::time::timeout(DEADLINE, source.next())
            .await
            .expect("no delivery in time")
        {
            Ok(delivery) => return delivery.expect("the source has ended"),
            Err(error) => error,
        };
        assert!(started.elapsed() < DEADLINE, "no delivery: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Publishes repeatedly until the broker confirms the effect, as a relay does. Increments `away`
/// for each attempt that found the broker or the topic unavailable.
async fn publish(publisher: &impl Publisher, effect: &OutgoingMessage, away: &AtomicU32) {
    let started = Instant::now();
    loop {
        match publisher.publish(effect).await {
            Ok(()) => return,
            // After a restart, queues and streams may become available later than the broker.
            Err(PublishError::Unavailable(error) | PublishError::TopicUnavailable(error)) => {
                away.fetch_add(1, Ordering::SeqCst);
                assert!(started.elapsed() < DEADLINE, "not published: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asserts that nothing is delivered for 300 ms. The time is fixed, because no state shows that
/// nothing will be delivered.
async fn assert_silent(source: &mut impl Source) {
    let delivered = tokio::time::timeout(Duration::from_millis(300), source.next()).await;
    assert!(delivered.is_err(), "{delivered:?}");
}

/// Acknowledges deliveries until all of `wanted` have been delivered.
async fn collect(source: &mut impl Source, mut wanted: HashSet<String>) {
    while !wanted.is_empty() {
        let delivery = next(source).await;
        wanted.remove(&text(&delivery));
        // Ignore an error: if the broker is killed now, it redelivers the message.
        let _ = delivery.settle(idem_runtime::Settlement::Acknowledge).await;
    }
}
