//! Handlers that execute COMMIT in their transaction. The claim is then committed without the
//! effects of the message, and the inbox no longer has the message.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_client::deadletters::{list, requeue_all};
use idem_runtime::{Handled, Message, Tx, consumer::Batches};
use idem_testkit::until;

use crate::fixtures::{Fixture, Running, note};

/// A handler that executes COMMIT for the message `ender`, until it is repaired.
#[derive(Clone, Default)]
struct Committing {
    is_repaired: Arc<AtomicBool>,
    /// Whether the handler returns an error after its COMMIT.
    fails: bool,
}

impl Committing {
    fn handler(
        &self,
    ) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
        let this = self.clone();
        move |tx, message| {
            let this = this.clone();
            Box::pin(async move {
                note(&tx, &message).await?;
                let is_ender = &message.payload()[..] == b"\"ender\"";
                if is_ender && !this.is_repaired.load(Ordering::SeqCst) {
                    tx.batch_execute("COMMIT").await?;
                    if this.fails {
                        return Err("out of stock".into());
                    }
                }
                Ok(vec![])
            })
        }
    }
}

/// Returns the payloads of the dead letters of a handler that ended its transaction.
async fn kept(fixture: &Fixture) -> Vec<String> {
    let letters = list(&fixture.client, &fixture.to, "%ended its transaction%", 100)
        .await
        .unwrap();
    let payload = |payload: Vec<u8>| String::from_utf8(payload).unwrap();
    let mut kept: Vec<_> = letters.into_iter().map(|l| payload(l.payload)).collect();
    kept.sort();
    kept
}

async fn requeue(fixture: &Fixture) -> i32 {
    requeue_all(&fixture.client, &fixture.to, "%", 100)
        .await
        .unwrap()
}

/// I4: a message of the inbox whose handler has executed COMMIT, and perhaps fails after that,
/// becomes a dead letter each time. It is handled after it was requeued to a correct handler.
#[tokio::test]
async fn i4_message_with_committed_claim_becomes_dead_letter() {
    for fails in [false, true] {
        let fixture = Fixture::new().await;
        for id in ["first", "ender", "last"] {
            fixture.receive(id, "").await;
        }
        let committing = Committing {
            fails,
            ..Committing::default()
        };
        let consumer = fixture
            .consumer(&fixture.db.pool(4))
            .concurrency(1)
            .handle(fixture.to.as_str(), committing.handler());
        let consumer = Running::start(consumer);
        for round in 1..=3 {
            until("the message is a dead letter", async || {
                kept(&fixture).await == ["\"ender\""]
            })
            .await;
            fixture.until_done(2 + round).await;
            committing.is_repaired.store(round == 3, Ordering::SeqCst);
            assert_eq!(requeue(&fixture).await, 1);
        }
        fixture.until_done(6).await;
        fixture.until_empty().await;
        let summary = consumer.stop().await;
        assert_eq!(
            (summary.handled, summary.rejected, summary.retried),
            (3, 3, 0)
        );
        assert_eq!(summary.duplicates, 0);
        assert!(fixture.dead().await.is_empty());
    }
}

/// I4: a handler that commits the claims of a batch, and perhaps fails after that, loses no message
/// of the batch.
#[tokio::test]
async fn i4_batch_with_committed_claims_becomes_dead_letters() {
    for fails in [false, true] {
        let fixture = Fixture::new().await;
        for id in ["ender", "first", "last"] {
            fixture.receive(id, "").await;
        }
        let committing = Committing {
            fails,
            ..Committing::default()
        };
        let consumer = fixture
            .consumer(&fixture.db.pool(4))
            .concurrency(1)
            .batches(Batches::new(3).linger(Duration::MAX))
            .handle(fixture.to.as_str(), committing.handler());
        let consumer = Running::start(consumer);
        until("all messages are dead letters", async || {
            kept(&fixture).await == ["\"ender\"", "\"first\"", "\"last\""]
        })
        .await;
        assert_eq!(fixture.left().await, 0);
        assert_eq!(fixture.count_done().await, if fails { 1 } else { 3 });

        committing.is_repaired.store(true, Ordering::SeqCst);
        assert_eq!(requeue(&fixture).await, 3);
        fixture.until_done(if fails { 4 } else { 6 }).await;
        fixture.until_empty().await;
        let summary = consumer.stop().await;
        assert_eq!((summary.handled, summary.rejected), (3, 3));
        assert!(fixture.dead().await.is_empty());
    }
}

/// I4: a handler that executes ROLLBACK leaves its message in the inbox, where it becomes a dead
/// letter under its own id.
#[tokio::test]
async fn i4_rolled_back_message_keeps_its_id() {
    let fixture = Fixture::new().await;
    fixture.receive("m", "").await;
    let handler = |tx: Tx, message: Message| async move {
        note(&tx, &message).await?;
        tx.batch_execute("ROLLBACK").await?;
        Ok(vec![])
    };
    let consumer = fixture
        .consumer(&fixture.db.pool(4))
        .handle(fixture.to.as_str(), handler);
    let consumer = Running::start(consumer);
    until("the message is a dead letter", async || {
        !fixture.dead().await.is_empty()
    })
    .await;
    let summary = consumer.stop().await;
    assert_eq!((summary.handled, summary.rejected), (0, 1));
    let dead = fixture.dead().await;
    assert_eq!((dead.len(), dead[0].0.as_str()), (1, "m"), "{dead:?}");
    assert!(fixture.done().await.is_empty());
}
