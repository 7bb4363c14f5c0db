//! Handlers that execute COMMIT, which the server rejects, or ROLLBACK, or that change the
//! search_path. The message stays in the inbox, where it becomes a dead letter under its own id.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use idem_runtime::{Handled, Message, Tx, consumer::Batches};
use idem_testkit::until;

use crate::fixtures::{Fixture, Running, note};

/// What the handler of the message `ender` does after its insert.
#[derive(Clone, Copy, Debug)]
enum Misuse {
    Commits,
    /// The handler ignores that its COMMIT is rejected.
    Ignores,
    /// The handler ignores that its COMMIT is rejected, and fails.
    Fails,
    /// The handler ignores that its COMMIT is rejected, and keeps its `Tx`.
    Keeps,
    RollsBack,
    ChangesPath,
}

const MISUSES: [Misuse; 6] = [
    Misuse::Commits,
    Misuse::Ignores,
    Misuse::Fails,
    Misuse::Keeps,
    Misuse::RollsBack,
    Misuse::ChangesPath,
];

impl Misuse {
    /// Returns a part of the reason of the dead letter, and the number of attempts.
    fn outcome(self) -> (&'static str, i32) {
        match self {
            Self::Commits => ("2D000: COMMIT", 1),
            Self::Ignores => ("25P02", 3),
            Self::RollsBack => ("was ended before its commit", 1),
            Self::ChangesPath => ("restore both", 1),
            Self::Fails => ("out of stock", 3),
            Self::Keeps => ("kept its transaction", 1),
        }
    }
}

/// A handler that misuses its transaction for the message `ender`, until it is repaired.
#[derive(Clone)]
struct Ender {
    misuse: Misuse,
    is_repaired: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<Tx>>>,
}

impl Ender {
    fn new(misuse: Misuse) -> Self {
        Self {
            misuse,
            is_repaired: Arc::default(),
            kept: Arc::default(),
        }
    }

    fn handler(
        &self,
    ) -> impl Fn(Tx, Message) -> BoxFuture<'static, Handled> + Send + Sync + 'static {
        let this = self.clone();
        move |tx, message| Box::pin(this.clone().handle(tx, message))
    }

    async fn handle(self, tx: Tx, message: Message) -> Handled {
        note(&tx, &message).await?;
        let is_ender = &message.payload()[..] == b"\"ender\"";
        if !is_ender || self.is_repaired.load(Ordering::SeqCst) {
            return Ok(vec![]);
        }
        let end = match self.misuse {
            Misuse::RollsBack => "ROLLBACK",
            Misuse::ChangesPath => "SET LOCAL search_path = pg_catalog",
            _ => "COMMIT",
        };
        let ended = tx.batch_execute(end).await;
        match self.misuse {
            Misuse::Fails => return Err("out of stock".into()),
            Misuse::Keeps => self.kept.lock().unwrap().push(tx),
            Misuse::Commits => ended?,
            Misuse::Ignores | Misuse::RollsBack | Misuse::ChangesPath => {}
        }
        Ok(vec![])
    }
}

/// I2, I4: a message whose handler misuses its transaction, alone or in a batch, becomes a dead
/// letter under its own id, without a write of its handler. It is handled after it was requeued to
/// a correct handler, and so are the other messages.
#[tokio::test]
async fn i4_message_with_ended_transaction_becomes_dead_letter() {
    for (misuse, batch) in MISUSES
        .into_iter()
        .flat_map(|misuse| [(misuse, 1), (misuse, 3)])
    {
        let what = format!("{misuse:?}, a batch of {batch}");
        let fixture = Fixture::new().await;
        for id in ["first", "last", "ender"] {
            fixture.receive(id, "").await;
        }
        let ender = Ender::new(misuse);
        let consumer = fixture
            .consumer(&fixture.db.pool(8))
            .concurrency(1)
            .batches(Batches::new(batch).linger(Duration::from_millis(100)))
            .handle(fixture.to.as_str(), ender.handler());
        let consumer = Running::start(consumer);
        for round in 1..=2 {
            until("the message is a dead letter", async || {
                !fixture.dead().await.is_empty()
            })
            .await;
            fixture.until_empty().await;
            let dead = fixture.dead().await;
            let [(id, attempt, reason)] = &dead[..] else {
                panic!("{what}: {dead:?}");
            };
            let (cause, attempts) = misuse.outcome();
            assert_eq!((id.as_str(), *attempt), ("ender", attempts), "{what}");
            assert!(reason.contains(cause), "{what}: {reason}");
            let mut done = fixture.done().await;
            done.sort();
            assert_eq!(done, ["first", "last"], "{what}");
            ender.kept.lock().unwrap().clear();
            ender.is_repaired.store(round == 2, Ordering::SeqCst);
            assert_eq!(fixture.requeue_all().await, 1, "{what}");
        }
        fixture.until_done(3).await;
        fixture.until_empty().await;
        let summary = consumer.stop().await;
        assert_eq!(
            (summary.handled, summary.rejected, summary.duplicates),
            (3, 2, 0),
            "{what}"
        );
        assert!(fixture.dead().await.is_empty(), "{what}");
        assert_eq!(fixture.count_done().await, 3, "{what}");
    }
}
