//! I4: while a broker cannot accept messages of a topic, the effects of that topic wait. They use
//! up no attempts and are not parked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::Pool;
use idem_client::{Effect, send};
use idem_runtime::{OutgoingMessage, PublishError, Publisher, Relay};
use idem_testkit::log::Log;
use idem_testkit::{Database, until};
use tokio::sync::oneshot;
use tokio_postgres::Client;
use tracing::Level;

/// The number of attempts after which the relay parks an effect. The tests wait for more attempts
/// than this before they repair the broker.
const MAX_ATTEMPTS: u32 = 3;

/// Records the messages that went through a publisher.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    attempts: HashMap<String, u32>,
    published: Vec<(String, String)>,
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self, topic: &str) -> u32 {
        self.state().attempts.get(topic).copied().unwrap_or(0)
    }

    /// Returns the texts that were published with this key, in order.
    fn of_key(&self, key: &str) -> Vec<String> {
        let published = self.state().published.clone();
        let of_key = published.into_iter().filter(|(of, _)| of == key);
        of_key.map(|(_, text)| text).collect()
    }
}

/// A publisher of a real broker that records its attempts and its successes.
struct Noted<P>(P, Seen);

impl<P: Publisher> Publisher for Noted<P> {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        *self
            .1
            .state()
            .attempts
            .entry(message.topic.clone())
            .or_default() += 1;
        self.0.publish(message).await?;
        let text: String = serde_json::from_slice(&message.payload).unwrap();
        self.1
            .state()
            .published
            .push((message.key.clone().unwrap_or_default(), text));
        Ok(())
    }
}

async fn send_text(client: &Client, topic: &str, key: &str, text: &str) {
    let effect = Effect::json(topic, &text).unwrap().key(key);
    send(client, &effect).await.unwrap();
}

fn relay<P: Publisher>(pool: Pool, publisher: P) -> Relay<P> {
    Relay::new(pool, publisher)
        .max_attempts(MAX_ATTEMPTS)
        .back_off(Duration::from_millis(5), Duration::from_millis(20))
}

async fn parked(client: &Client) -> Vec<String> {
    let rows = client
        .query("SELECT error FROM idem.parked ORDER BY seq", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Asserts that effects of the topic `absent` wait until `mend` has repaired the broker, and that
/// effects of `present` are published meanwhile.
pub async fn assert_waited_for<P: Publisher>(
    publisher: P,
    absent: &str,
    present: &str,
    mend: impl Future<Output = ()>,
) {
    let (log, _guard) = Log::keep();
    let db = Database::create();
    let client = db.client().await;
    for (topic, key, text) in [
        (present, "a", "a-0"),
        (absent, "a", "a-1"),
        (present, "a", "a-2"),
        (absent, "a", "a-3"),
        (present, "b", "b-0"),
        (absent, "c", "c-0"),
        (present, "d", "d-0"),
    ] {
        send_text(&client, topic, key, text).await;
    }
    let seen = Seen::default();
    let relay = relay(db.pool(3), Noted(publisher, seen.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let status = relay.status();
    let running = tokio::spawn(relay.run(async {
        let _ = stopped.await;
    }));

    until("the topic has been tried often enough", async || {
        seen.attempts(absent) > 2 * MAX_ATTEMPTS
    })
    .await;
    assert_eq!(
        parked(&client).await,
        [""; 0],
        "an effect was parked for a fault of its topic"
    );
    until("the other effects are published", async || {
        status.borrow().published >= 3
    })
    .await;
    assert_eq!(seen.of_key("b"), ["b-0"]);
    assert_eq!(seen.of_key("d"), ["d-0"]);
    assert_eq!(
        seen.of_key("a"),
        ["a-0"],
        "an effect overtook another of its key"
    );
    let named: Vec<_> = status
        .borrow()
        .unavailable
        .iter()
        .map(|at| at.topic.clone())
        .collect();
    assert_eq!(named, [absent]);
    assert_eq!(
        status.borrow().broker,
        Some(true),
        "the broker itself is not available"
    );
    let warnings = log.lines(Level::WARN, "");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains(absent), "{warnings:?}");
    assert_eq!(log.lines(Level::INFO, absent), [""; 0]);

    mend.await;
    until("all effects are published", async || {
        status.borrow().published == 7
    })
    .await;
    assert_eq!(seen.of_key("a"), ["a-0", "a-1", "a-2", "a-3"]);
    assert_eq!(seen.of_key("c"), ["c-0"]);
    assert_eq!(status.borrow().unavailable, []);
    assert_eq!(
        log.lines(Level::INFO, absent).len(),
        1,
        "no log line for the topic that is available again"
    );
    assert_eq!(log.lines(Level::WARN, "").len(), 1);
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(parked(&client).await, [""; 0]);
}

/// Asserts that the relay parks an effect above the broker's limit at once, because each attempt
/// would delay its batch, and publishes the other effects of its topic.
pub async fn assert_parked(publisher: impl Publisher, topic: &str, reason: &str) {
    let db = Database::create();
    let client = db.client().await;
    send_text(&client, topic, "before", "before").await;
    send_text(&client, topic, "poison", &"x".repeat(10_000)).await;
    send_text(&client, topic, "after", "after").await;
    let seen = Seen::default();
    let relay = relay(db.pool(3), Noted(publisher, seen.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let status = relay.status();
    let running = tokio::spawn(relay.run(async {
        let _ = stopped.await;
    }));
    until("the effect is parked", async || {
        parked(&client).await.len() == 1
    })
    .await;
    until("the other effects are published", async || {
        status.borrow().published == 2
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    let parked = parked(&client).await;
    assert!(
        parked[0].starts_with("the effect cannot be published: "),
        "{parked:?}"
    );
    assert!(parked[0].contains(reason), "{parked:?}");
}
