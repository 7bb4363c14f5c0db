//! Tests of the hand-over from the outbox to the inbox of the same database.

use std::collections::HashMap;

use idem_client::{Effect, send};
use idem_runtime::relay::HandOver;
use idem_testkit::{DEADLINE, until};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::fixtures::{Fixture, Running, noting};

struct Handing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<u64, idem_runtime::Error>>,
}

impl Handing {
    fn start(fixture: &Fixture, relay: &str) -> Self {
        let (stop, stopped) = oneshot::channel();
        let hand_over = HandOver::new(fixture.db.pool(3), relay, [fixture.to.as_str()]).batch(7);
        let task = tokio::spawn(hand_over.run(async {
            let _ = stopped.await;
        }));
        Self { stop, task }
    }

    async fn stop(self) -> u64 {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(DEADLINE, self.task).await;
        ended
            .expect("the hand-over does not stop")
            .unwrap()
            .unwrap()
    }
}

/// Sends `count` effects. Every fifth effect has another destination than the inbox of this test.
/// Returns the message ids of all other effects by key, in order.
async fn send_effects(fixture: &Fixture, count: usize) -> HashMap<usize, Vec<String>> {
    let mut sent: HashMap<usize, Vec<String>> = HashMap::new();
    for n in 0..count {
        let to = if n % 5 == 4 {
            "elsewhere"
        } else {
            fixture.to.as_str()
        };
        let effect = Effect::json(to, &n).unwrap().key(format!("key-{}", n % 3));
        let id = send(&fixture.client, &effect).await.unwrap();
        if n % 5 != 4 {
            sent.entry(n % 3).or_default().push(id.to_string());
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_hand_overs_deliver_an_effect_once() {
    const EFFECTS: usize = 200;
    let fixture = Fixture::new().await;
    fixture
        .client
        .batch_execute("SELECT idem_create_relay('inboxes', 2, true)")
        .await
        .unwrap();
    let (first, second) = (
        Handing::start(&fixture, "inboxes"),
        Handing::start(&fixture, "inboxes"),
    );
    let consumer = Running::start(
        fixture
            .consumer(&fixture.db.pool(6))
            .handle(fixture.to.as_str(), noting()),
    );
    let before = send_effects(&fixture, EFFECTS / 2).await;
    fixture.until_done(EFFECTS / 10).await;
    first.task.abort();
    let after = send_effects(&fixture, EFFECTS / 2).await;
    let mine = EFFECTS - EFFECTS / 5;
    fixture.until_done(mine).await;
    until("the relay has no lag", async || {
        let lag = "SELECT sum(lag_messages)::bigint = 0 FROM idem.relays WHERE relay = 'inboxes'";
        fixture
            .client
            .query_one(lag, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    fixture.until_empty().await;
    assert!(second.stop().await > 0);
    consumer.stop().await;
    let done = fixture.done().await;
    assert_eq!(done.len(), mine);
    for key in 0..3 {
        let sent = [&before[&key][..], &after[&key][..]].concat();
        let of_key: Vec<_> = done
            .iter()
            .filter(|id| sent.contains(id))
            .cloned()
            .collect();
        assert_eq!(
            of_key, sent,
            "the effects of key {key}, each once and in order"
        );
    }
}

/// Goal: a hand-over waits if its relay does not exist yet, and continues after it has lost its
/// connection. Invariant: I4.
#[tokio::test]
async fn i4_hand_over_waits_for_its_relay_and_its_database() {
    let fixture = Fixture::new().await;
    let hand_over = Handing::start(&fixture, "later");
    until("the relay is not found several times", async || {
        let failed =
            "SELECT xact_rollback >= 3 FROM pg_stat_database WHERE datname = current_database()";
        fixture
            .client
            .query_one(failed, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    })
    .await;
    fixture
        .client
        .batch_execute("SELECT idem_create_relay('later')")
        .await
        .unwrap();
    send_effects(&fixture, 1).await;
    until("the first effect is received", async || {
        fixture.left().await == 1
    })
    .await;
    let kill = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'
            AND (query LIKE '%idem_hand_over%' OR query LIKE '%idem_relay_wait%')
            AND pid <> pg_backend_pid()",
        fixture.db.name()
    );
    fixture.db.psql(&kill);
    send_effects(&fixture, 1).await;
    until("the second effect is received", async || {
        fixture.left().await == 2
    })
    .await;
    hand_over.stop().await;
}
