//! Many messages in one transaction.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use idem_client::{
    Error, Handled, HandlerError, Idem, Message, MissingId, Processed, Store, Style, Tx,
};
use uuid::Uuid;

use crate::ground::{DESTINATION, Ground, fact, idem, insert, message, work};

fn is_new(answer: &Result<Processed, Error>) -> bool {
    matches!(answer, Ok(Processed::New { .. }))
}

fn is_duplicate(answer: &Result<Processed, Error>) -> bool {
    matches!(answer, Ok(Processed::Duplicate { .. }))
}

/// How many transactions have done work.
async fn transactions(ground: &Ground) -> i64 {
    ground
        .count("SELECT count(DISTINCT xmin::text) FROM work")
        .await
}

#[tokio::test]
async fn a_batch_is_one_transaction_and_answers_in_order() {
    let ground = Ground::new().await;
    let known = message();
    assert!(is_new(
        &Idem::new().process(&ground.pool, &known, work).await
    ));
    let (first, second) = (message(), message());
    let messages = [first.clone(), known.clone(), second.clone(), first.clone()];
    let order = Arc::new(Mutex::new(Vec::new()));
    let answers = Idem::new()
        .process_batch(&ground.pool, &messages, |tx, message| {
            order
                .lock()
                .unwrap()
                .push(message.message_id().map(str::to_string));
            work(tx, message)
        })
        .await;
    assert!(
        is_new(&answers[0])
            && is_duplicate(&answers[1])
            && is_new(&answers[2])
            && is_duplicate(&answers[3]),
        "{answers:?}"
    );
    for (answer, message) in answers
        .iter()
        .zip(&messages)
        .filter(|(answer, _)| is_new(answer))
    {
        let recorded = ground
            .effects(message)
            .await
            .iter()
            .map(|effect| effect.message_id)
            .collect();
        assert!(
            matches!(answer, Ok(Processed::New { effects }) if *effects == Vec::from_iter::<Vec<_>>(recorded))
        );
    }
    for message in &messages {
        ground.assert_done_once(message).await;
    }
    assert_eq!(transactions(&ground).await, 2);
    let ids = [&first, &second].map(|message| message.message_id().map(str::to_string));
    assert_eq!(*order.lock().unwrap(), ids);
}

#[tokio::test]
async fn uuids_and_texts_are_claimed_in_one_batch() {
    let ground = Ground::new().await;
    let of = |id: &str| Message::new(DESTINATION, "{}").with_message_id(id);
    let messages = [
        of("it's \\ one"),
        of(&Uuid::new_v4().to_string()),
        of("{two, \"three\"}"),
    ];
    let answers = Idem::new()
        .process_batch(&ground.pool, &messages, work)
        .await;
    assert!(answers.iter().all(is_new), "{answers:?}");
    assert_eq!(transactions(&ground).await, 1);
    for message in &messages {
        ground.assert_done_once(message).await;
    }
}

#[tokio::test]
async fn a_poisoned_message_fails_alone() {
    let ground = Ground::new().await;
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
        let answers = idem(|rule| rule.max_attempts(1))
            .process_batch(&ground.pool, &messages, |tx, message| {
                let is_poisoned = message.message_id() == poisoned.as_deref();
                let kept = &kept;
                async move {
                    if is_poisoned {
                        poison("").take(tx, &message, kept).await
                    } else {
                        work(tx, message).await
                    }
                }
            })
            .await;
        assert!(
            is_new(&answers[0]) && answers[1].is_err() && is_new(&answers[2]),
            "{answers:?}"
        );
        ground.assert_done_once(&messages[0]).await;
        ground.assert_done_once(&messages[2]).await;
        kept.lock().unwrap().clear();
        ground.until_quiet().await;
        ground.assert_untouched(&messages[1]).await;
    }
}

enum Poison {
    Fails,
    Swallows,
    Dies,
    Keeps,
}

impl Poison {
    async fn take(self, tx: Tx, message: &Message, kept: &Mutex<Vec<Tx>>) -> Handled {
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
async fn a_batch_of_duplicates_calls_no_handler() {
    let ground = Ground::new().await;
    let messages = [message(), message()];
    assert!(
        Idem::new()
            .process_batch(&ground.pool, &messages, work)
            .await
            .iter()
            .all(is_new)
    );
    let calls = AtomicUsize::new(0);
    let answers = Idem::new()
        .process_batch(&ground.pool, &messages, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(tx, message)
        })
        .await;
    assert!(answers.iter().all(is_duplicate), "{answers:?}");
    assert_eq!(calls.into_inner(), 0);
    ground.until_quiet().await;
}

#[tokio::test]
async fn what_cannot_share_a_transaction_is_processed_one_by_one() {
    let ground = Ground::new().await;
    // Equal ids, the second of which waits for the first in the memory of this process.
    let idem_in_memory = idem(|rule| rule.store(Store::Memory));
    let twice = message();
    let answers = idem_in_memory
        .process_batch(&ground.pool, &[twice.clone(), twice.clone()], work)
        .await;
    assert!(
        is_new(&answers[0]) && is_duplicate(&answers[1]),
        "{answers:?}"
    );
    assert_eq!(ground.work(&twice).await, 1);

    let mixed = [
        message(),
        message(),
        message().with_destination("process.others".try_into().unwrap()),
        Message::new(DESTINATION, "{}"),
        message(),
    ];
    let answers = idem(|rule| rule.missing_id(MissingId::Unprotected))
        .process_batch(&ground.pool, &mixed, work)
        .await;
    assert_eq!(
        answers.iter().filter(|answer| is_new(answer)).count(),
        4,
        "{answers:?}"
    );
    assert!(
        matches!(answers[3], Ok(Processed::Unprotected { .. })),
        "{answers:?}"
    );
    ground.assert_done_once(&mixed[0]).await;
    ground.assert_done_once(&mixed[4]).await;

    let reactive = [message(), message()];
    let answers = idem(|rule| rule.style(Style::Reactive))
        .process_batch(&ground.pool, &reactive, work)
        .await;
    assert!(answers.iter().all(is_new), "{answers:?}");
    assert!(
        Idem::new()
            .process_batch(&ground.pool, &[], work)
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn two_batches_with_the_same_messages_take_effect_once() {
    let ground = Ground::new().await;
    let messages: Vec<_> = (0..20).map(|_| message()).collect();
    let reversed: Vec<_> = messages.iter().rev().cloned().collect();
    let idem = Idem::new();
    let (one, other) = tokio::join!(
        idem.process_batch(&ground.pool, &messages, work),
        idem.process_batch(&ground.pool, &reversed, work)
    );
    let new = one
        .iter()
        .chain(&other)
        .filter(|answer| is_new(answer))
        .count();
    assert_eq!(new, messages.len());
    for message in &messages {
        ground.assert_done_once(message).await;
    }
}
