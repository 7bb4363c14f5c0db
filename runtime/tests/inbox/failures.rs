//! Failed messages are retried after a back-off and become dead letters. The database counts the
//! attempts.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_runtime::{Handled, HandlerError, Message, Tx};
use idem_testkit::until;

use crate::fixtures::{Fixture, Running, note};

type Attempts = Arc<Mutex<Vec<(Option<u32>, Option<String>)>>>;

#[tokio::test]
async fn retry_passes_attempt_and_last_error_to_the_handler() {
    let fixture = Fixture::new().await;
    fixture.receive("m", "").await;
    let attempts = Attempts::default();
    let seen = Arc::clone(&attempts);
    let handler = move |tx: Tx, message: Message| {
        let seen = Arc::clone(&seen);
        async move {
            note(&tx, &message).await?;
            let attempt = message.deliveries().unwrap_or(0);
            let last_error = message.last_error().map(str::to_owned);
            seen.lock()
                .unwrap()
                .push((message.deliveries(), last_error));
            match attempt {
                1 => Err("out of stock".into()),
                2 => panic!("a bug"),
                _ => Ok(vec![]),
            }
        }
    };
    let consumer = Running::start(
        fixture
            .consumer(&fixture.db.pool(4))
            .handle(fixture.to.as_str(), handler),
    );
    fixture.until_done(1).await;
    fixture.until_empty().await;
    let summary = consumer.stop().await;
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 2, 0)
    );
    assert_eq!(
        fixture.done().await,
        ["m"],
        "failed attempts are rolled back"
    );
    let attempts = attempts.lock().unwrap().clone();
    assert_eq!(attempts[0], (Some(1), None));
    assert_eq!(
        attempts[1],
        (Some(2), Some("the handler failed: out of stock".into()))
    );
    assert_eq!(
        attempts[2],
        (Some(3), Some("the handler failed: panicked: a bug".into()))
    );
}

/// A handler that fails until `is_repaired` is set, and counts its attempts.
#[derive(Clone, Default)]
struct Poison {
    is_repaired: Arc<AtomicU32>,
    attempts: Arc<AtomicU32>,
}

impl Poison {
    fn handler(
        &self,
    ) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
        let this = self.clone();
        move |tx, message| {
            let this = this.clone();
            Box::pin(async move {
                this.attempts.fetch_add(1, Ordering::SeqCst);
                note(&tx, &message).await?;
                let id = message.message_id().unwrap_or_default();
                match this.is_repaired.load(Ordering::SeqCst) {
                    0 if id.starts_with("final") => Err(HandlerError::terminal("no such account")),
                    0 if id.starts_with("known") => Err("card declined for good".into()),
                    0 => Err("never".into()),
                    _ => Ok(vec![]),
                }
            })
        }
    }
}

/// Goal: a message without remaining attempts becomes a dead letter, and is handled once after it
/// is requeued.
#[tokio::test]
async fn requeued_dead_letter_is_handled_once() {
    let fixture = Fixture::new().await;
    fixture.receive("m", "").await;
    let poison = Poison::default();
    let consumer = Running::start(
        fixture
            .consumer(&fixture.db.pool(4))
            .handle(fixture.to.as_str(), poison.handler()),
    );
    until("the message is a dead letter", async || {
        !fixture.dead().await.is_empty()
    })
    .await;
    assert_eq!(
        fixture.dead().await,
        [("m".to_owned(), 3, "the handler failed: never".to_owned())]
    );
    assert_eq!(poison.attempts.load(Ordering::SeqCst), 3);
    assert!(fixture.done().await.is_empty());

    poison.is_repaired.store(1, Ordering::SeqCst);
    assert_eq!(fixture.requeue_all().await, 1);
    fixture.until_done(1).await;
    fixture.until_empty().await;
    let summary = consumer.stop().await;
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 2, 1)
    );
    assert_eq!(
        (fixture.done().await.len(), fixture.dead().await.len()),
        (1, 0)
    );
}

#[tokio::test]
async fn terminal_or_final_error_makes_a_dead_letter_at_once() {
    let fixture = Fixture::new().await;
    fixture
        .retries("max_attempts => 3, base => '20 ms', final_errors => '{%declined for good%}'")
        .await;
    fixture.receive("final", "").await;
    fixture.receive("known", "").await;
    let poison = Poison::default();
    let consumer = Running::start(
        fixture
            .consumer(&fixture.db.pool(4))
            .handle(fixture.to.as_str(), poison.handler()),
    );
    until("both are dead letters", async || {
        fixture.dead().await.len() == 2
    })
    .await;
    let summary = consumer.stop().await;
    assert_eq!((summary.retried, summary.rejected), (0, 2));
    let dead = fixture.dead().await;
    assert!(dead.iter().all(|(_, attempt, _)| *attempt == 1), "{dead:?}");
    assert!(dead[0].2.contains("no such account"), "{dead:?}");
    assert_eq!(poison.attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn release_by_a_filter_does_not_count_as_a_failure() {
    use futures_util::FutureExt;
    use idem_runtime::{
        Idem, Settlement,
        filter::{Before, Filter},
    };

    /// Releases a message five times. This is more often than the message may fail.
    struct NotYet(AtomicU32);

    impl Filter for NotYet {
        fn before_consuming<'a>(&'a self, _: &'a Message) -> BoxFuture<'a, Before> {
            let is_early = self.0.fetch_add(1, Ordering::SeqCst) < 5;
            async move {
                match is_early {
                    true => Before::Stop(Settlement::Release {
                        after: Duration::from_millis(20),
                    }),
                    false => Before::Continue,
                }
            }
            .boxed()
        }
    }

    let fixture = Fixture::new().await;
    fixture.receive("m", "").await;
    let idem = Idem::builder()
        .filter(NotYet(AtomicU32::new(0)))
        .build()
        .unwrap();
    let consumer = fixture.consumer(&fixture.db.pool(4)).idem(idem);
    let consumer = Running::start(consumer.handle(fixture.to.as_str(), crate::fixtures::noting()));
    fixture.until_done(1).await;
    let summary = consumer.stop().await;
    assert_eq!(
        (summary.handled, summary.retried, summary.rejected),
        (1, 5, 0)
    );
    assert!(fixture.dead().await.is_empty());
}
