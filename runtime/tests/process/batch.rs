//! Tests of batches, which process many messages in one transaction.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use idem_runtime::{
    Error, Handled, HandlerError, Idem, Message, Processed, Tx,
    policy::{MissingId, Store, Style},
};
use uuid::Uuid;

use crate::fixtures::{DESTINATION, Fixture, fact, idem, insert, message, work};

fn is_new(result: &Result<Processed, Error>) -> bool {
    matches!(result, Ok(Processed::New { .. }))
}

fn is_duplicate(result: &Result<Processed, Error>) -> bool {
    matches!(result, Ok(Processed::Duplicate { .. }))
}

/// Returns the number of different transactions that have inserted the rows.
async fn transactions(fixture: &Fixture) -> i64 {
    fixture
        .count("SELECT count(DISTINCT xmin::text) FROM work")
        .await
}

#[tokio::test]
async fn batch_is_one_transaction_and_returns_in_order() {
    let fixture = Fixture::new().await;
    let known = message();
    assert!(is_new(
        &Idem::new().process(&fixture.pool, &known, work).await
    ));
    let (first, second) = (message(), message());
    let messages = [first.clone(), known.clone(), second.clone(), first.clone()];
    let order = Arc::new(Mutex::new(Vec::new()));
    let results = Idem::new()
        .process_batch(&fixture.pool, &messages, |tx, message| {
            order
                .lock()
                .unwrap()
                .push(message.message_id().map(str::to_string));
            work(tx, message)
        })
        .await;
    assert!(
        is_new(&results[0])
            && is_duplicate(&results[1])
            && is_new(&results[2])
            && is_duplicate(&results[3]),
        "{results:?}"
    );
    for (result, message) in results
        .iter()
        .zip(&messages)
        .filter(|(result, _)| is_new(result))
    {
        let recorded = fixture
            .effects(message)
            .await
            .iter()
            .map(|effect| effect.message_id)
            .collect();
        assert!(matches!(
            result,
            Ok(Processed::New { effects }) if *effects == Vec::from_iter::<Vec<_>>(recorded)
        ));
    }
    for message in &messages {
        fixture.assert_done_once(message).await;
    }
    assert_eq!(transactions(&fixture).await, 2);
    let ids = [&first, &second].map(|message| message.message_id().map(str::to_string));
    assert_eq!(*order.lock().unwrap(), ids);
}

#[tokio::test]
async fn uuids_and_texts_are_claimed_in_one_batch() {
    let fixture = Fixture::new().await;
    let of = |id: &str| Message::new(DESTINATION, "{}").with_message_id(id);
    let messages = [
        of("it's \\ one"),
        of(&Uuid::new_v4().to_string()),
        of("{two, \"three\"}"),
    ];
    let results = Idem::new()
        .process_batch(&fixture.pool, &messages, work)
        .await;
    assert!(results.iter().all(is_new), "{results:?}");
    assert_eq!(transactions(&fixture).await, 1);
    for message in &messages {
        fixture.assert_done_once(message).await;
    }
}

#[tokio::test]
async fn poisoned_message_fails_alone() {
    let fixture = Fixture::new().await;
    let poisons: [fn(&str) -> Poison; 4] = [
        |_| Poison::Fails,
        |_| Poison::Swallows,
        |_| Poison::Dies,
        |_| Poison::Keeps,
    ];
    for poison in poisons {
        let messages = [message(), message(), message()];
        let poisoned = messages[1].message_id().map(str::to_string);
        let kept = Mutex::new(Vec::new());
        let results = idem(|policy| policy.retry.max_attempts = 1)
            .process_batch(&fixture.pool, &messages, |tx, message| {
                let is_poisoned = message.message_id() == poisoned.as_deref();
                let kept = &kept;
                async move {
                    if is_poisoned {
                        poison("").handle(tx, &message, kept).await
                    } else {
                        work(tx, message).await
                    }
                }
            })
            .await;
        assert!(
            is_new(&results[0]) && results[1].is_err() && is_new(&results[2]),
            "{results:?}"
        );
        fixture.assert_done_once(&messages[0]).await;
        fixture.assert_done_once(&messages[2]).await;
        kept.lock().unwrap().clear();
        fixture.until_quiet().await;
        fixture.assert_untouched(&messages[1]).await;
    }
}

enum Poison {
    Fails,
    Swallows,
    Dies,
    Keeps,
}

impl Poison {
    async fn handle(self, tx: Tx, message: &Message, kept: &Mutex<Vec<Tx>>) -> Handled {
        insert(&tx, message).await?;
        match self {
            Self::Fails => return Err(HandlerError::from("poisoned")),
            Self::Swallows => drop(tx.batch_execute("SELECT 1 / 0").await),
            Self::Dies => {
                tx.batch_execute("SELECT pg_terminate_backend(pg_backend_pid()); SELECT 1")
                    .await?
            }
            Self::Keeps => kept.lock().unwrap().push(tx),
        }
        Ok(vec![fact()])
    }
}

#[tokio::test]
async fn batch_of_duplicates_runs_no_handler() {
    let fixture = Fixture::new().await;
    let messages = [message(), message()];
    assert!(
        Idem::new()
            .process_batch(&fixture.pool, &messages, work)
            .await
            .iter()
            .all(is_new)
    );
    let calls = AtomicUsize::new(0);
    let results = Idem::new()
        .process_batch(&fixture.pool, &messages, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(tx, message)
        })
        .await;
    assert!(results.iter().all(is_duplicate), "{results:?}");
    assert_eq!(calls.into_inner(), 0);
    fixture.until_quiet().await;
}

#[tokio::test]
async fn messages_that_share_no_transaction_are_processed_singly() {
    let fixture = Fixture::new().await;
    // The two messages have the same id. The second waits in this process until the first has
    // ended.
    let idem_in_memory = idem(|policy| policy.store = Store::Memory);
    let twice = message();
    let results = idem_in_memory
        .process_batch(&fixture.pool, &[twice.clone(), twice.clone()], work)
        .await;
    assert!(
        is_new(&results[0]) && is_duplicate(&results[1]),
        "{results:?}"
    );
    assert_eq!(fixture.work(&twice).await, 1);

    let mixed = [
        message(),
        message(),
        message().with_destination(idem_client::Destination::new("process.others").unwrap()),
        Message::new(DESTINATION, "{}"),
        message(),
    ];
    let results = idem(|policy| policy.missing_id = MissingId::Unprotected)
        .process_batch(&fixture.pool, &mixed, work)
        .await;
    assert_eq!(
        results.iter().filter(|result| is_new(result)).count(),
        4,
        "{results:?}"
    );
    assert!(
        matches!(results[3], Ok(Processed::Unprotected { .. })),
        "{results:?}"
    );
    fixture.assert_done_once(&mixed[0]).await;
    fixture.assert_done_once(&mixed[4]).await;

    let reactive = [message(), message()];
    let results = idem(|policy| policy.style = Style::Reactive)
        .process_batch(&fixture.pool, &reactive, work)
        .await;
    assert!(results.iter().all(is_new), "{results:?}");
    assert!(
        Idem::new()
            .process_batch(&fixture.pool, &[], work)
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn concurrent_batches_handle_each_message_once() {
    let fixture = Fixture::new().await;
    let messages: Vec<_> = (0..20).map(|_| message()).collect();
    let reversed: Vec<_> = messages.iter().rev().cloned().collect();
    let idem = Idem::new();
    let (one, other) = tokio::join!(
        idem.process_batch(&fixture.pool, &messages, work),
        idem.process_batch(&fixture.pool, &reversed, work)
    );
    let new = one
        .iter()
        .chain(&other)
        .filter(|result| is_new(result))
        .count();
    assert_eq!(new, messages.len());
    for message in &messages {
        fixture.assert_done_once(message).await;
    }
}
