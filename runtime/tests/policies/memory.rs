//! Tests of policies that remember messages in the memory of the process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idem_client::ErrorKind;
use idem_runtime::{Handled, Idem, Message, Processed, Tx, policy::Store};
use idem_testkit::{in_time, until};
use tokio::sync::{Notify, mpsc};

use crate::fixtures::{Fixture, idem, is_duplicate, is_new, message, note};

const SHORT: Duration = Duration::from_millis(50);

fn in_memory() -> Idem {
    idem(|policy| policy.store = Store::Memory)
}

#[tokio::test]
async fn memory_store_handles_a_message_once_without_a_claim() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert!(is_new(&fixture.process(&idem, &message("b")).await));
    assert_eq!((fixture.facts().await, fixture.claims().await), (2, 0));
    assert_eq!(fixture.outbox().await.len(), 2);
    // A clone of `Idem` shares its memory. A new instance has a separate memory.
    assert!(is_duplicate(
        &fixture.process(&idem.clone(), &message("a")).await
    ));
    assert!(is_new(&fixture.process(&in_memory(), &message("a")).await));
}

#[tokio::test]
async fn memory_store_separates_destinations() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    let elsewhere = Message::new("elsewhere", "{}").with_message_id("a");
    assert!(is_new(&fixture.process(&idem, &elsewhere).await));
}

#[tokio::test]
async fn failed_delivery_leaves_nothing_and_is_retried() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    let failed = idem
        .process(
            &fixture.pool,
            &message("a"),
            async |tx: Tx, message: Message| -> Handled {
                note(tx, message).await?;
                Err("temporary failure".into())
            },
        )
        .await
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Handler);
    assert_eq!(
        (fixture.facts().await, fixture.outbox().await.len()),
        (0, 0)
    );
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    assert_eq!(fixture.facts().await, 1);
}

/// The first delivery of a message, with a handler that waits for `go`.
struct Held {
    go: Arc<Notify>,
    first: tokio::task::JoinHandle<Result<Processed, idem_runtime::Error>>,
}

async fn held(fixture: &Fixture, idem: &Idem, fails: bool) -> Held {
    let go = Arc::new(Notify::new());
    let (entered, mut handler_entered) = mpsc::channel(1);
    let (idem, pool, gate) = (idem.clone(), fixture.pool.clone(), Arc::clone(&go));
    let first = tokio::spawn(async move {
        idem.process(&pool, &message("a"), |tx, message| {
            let (gate, entered) = (Arc::clone(&gate), entered.clone());
            async move {
                entered.send(()).await?;
                gate.notified().await;
                let effects = note(tx, message).await?;
                if fails {
                    Err("temporary failure".into())
                } else {
                    Ok(effects)
                }
            }
        })
        .await
    });
    in_time(handler_entered.recv()).await.unwrap();
    Held { go, first }
}

/// Starts a second delivery of the same message. Returns its task, and the number of times that its
/// handler has run.
fn second(
    fixture: &Fixture,
    idem: &Idem,
) -> (
    tokio::task::JoinHandle<Result<Processed, idem_runtime::Error>>,
    Arc<AtomicU32>,
) {
    let (idem, pool, calls) = (
        idem.clone(),
        fixture.pool.clone(),
        Arc::new(AtomicU32::new(0)),
    );
    let counted = Arc::clone(&calls);
    let task = tokio::spawn(async move {
        idem.process(&pool, &message("a"), |tx, message| {
            counted.fetch_add(1, Ordering::Relaxed);
            note(tx, message)
        })
        .await
    });
    (task, calls)
}

#[tokio::test]
async fn concurrent_duplicate_waits_for_the_first_delivery() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    let held = held(&fixture, &idem, false).await;
    let (second, calls) = second(&fixture, &idem);
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    held.go.notify_one();
    assert!(is_new(&in_time(held.first).await.unwrap()));
    assert!(is_duplicate(&in_time(second).await.unwrap()));
    assert_eq!(
        (calls.load(Ordering::Relaxed), fixture.facts().await),
        (0, 1)
    );
}

#[tokio::test]
async fn concurrent_duplicate_runs_after_the_first_fails() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    let held = held(&fixture, &idem, true).await;
    let (second, calls) = second(&fixture, &idem);
    tokio::task::yield_now().await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    held.go.notify_one();
    assert!(in_time(held.first).await.unwrap().is_err());
    assert!(is_new(&in_time(second).await.unwrap()));
    assert_eq!(
        (calls.load(Ordering::Relaxed), fixture.facts().await),
        (1, 1)
    );
}

#[tokio::test]
async fn concurrent_duplicate_runs_after_the_first_is_cancelled() {
    let fixture = Fixture::new().await;
    let idem = in_memory();
    let held = held(&fixture, &idem, false).await;
    let (second, calls) = second(&fixture, &idem);
    tokio::task::yield_now().await;
    held.first.abort();
    assert!(held.first.await.unwrap_err().is_cancelled());
    assert!(is_new(&in_time(second).await.unwrap()));
    assert_eq!(
        (calls.load(Ordering::Relaxed), fixture.facts().await),
        (1, 1)
    );
}

#[tokio::test]
async fn concurrent_duplicate_without_wait_is_in_progress() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.store = Store::Memory;
        policy.wait = false;
    });
    let held = held(&fixture, &idem, false).await;
    let processed = fixture.process(&idem, &message("a")).await.unwrap();
    assert_eq!(processed, Processed::InProgress);
    held.go.notify_one();
    assert!(is_new(&in_time(held.first).await.unwrap()));
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert_eq!(fixture.facts().await, 1);
}

#[tokio::test]
async fn memory_ttl_limits_the_memory() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.store = Store::Memory;
        policy.memory_ttl = SHORT;
    });
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    until("the message is forgotten", async || {
        is_new(&fixture.process(&idem, &message("a")).await)
    })
    .await;
}

#[tokio::test]
async fn memory_capacity_limits_the_memory() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.store = Store::Memory;
        policy.memory_capacity = 2;
    });
    for id in ["a", "b", "c"] {
        assert!(is_new(&fixture.process(&idem, &message(id)).await));
    }
    until("the oldest message is forgotten", async || {
        is_new(&fixture.process(&idem, &message("a")).await)
    })
    .await;
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
}
