//! Tests of the transaction that a handler receives.

use std::sync::{Arc, Mutex};

use idem_runtime::{Error, Idem, Processed, Tx, policy::Style};
use idem_testkit::until;

use crate::fixtures::{Fixture, fact, idem, insert, message, work};

#[tokio::test]
async fn kept_transaction_is_rolled_back_and_its_connection_closed() {
    let fixture = Fixture::new().await;
    for (style, is_failing) in [
        (Style::Eager, false),
        (Style::Reactive, false),
        (Style::Eager, true),
    ] {
        let pool = fixture.database.pool(1);
        let (message, kept) = (message(), Arc::new(Mutex::new(None)));
        let idem = idem(|policy| policy.style = style);
        let processed = idem.process(&pool, &message, |tx: Tx, message| {
            let kept = Arc::clone(&kept);
            async move {
                insert(&tx, &message).await?;
                *kept.lock().unwrap() = Some(tx);
                if is_failing {
                    Err("no".into())
                } else {
                    Ok(vec![fact()])
                }
            }
        });
        assert!(matches!(processed.await, Err(Error::TransactionKept)));
        // The handler returned and kept `tx`. The runtime closes the connection, so no statement
        // can be executed in the transaction. The pool then opens another connection.
        let kept = kept.lock().unwrap().take().unwrap();
        until("the kept connection is closed", || async {
            kept.is_closed()
        })
        .await;
        assert!(kept.batch_execute("COMMIT").await.is_err());
        fixture.until_quiet().await;
        fixture.assert_untouched(&message).await;
        drop(kept);
        let processed = Idem::new().process(&pool, &message, work).await.unwrap();
        assert!(matches!(processed, Processed::New { .. }), "{processed:?}");
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn savepoint_rollback_keeps_the_transaction() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem.process(&fixture.pool, &message, |mut tx: Tx, message| async move {
        let savepoint = tx.savepoint().await?;
        insert(&savepoint, &message).await?;
        assert!(savepoint.batch_execute("SELECT 1 / 0").await.is_err());
        savepoint.rollback().await?;
        work(tx, message).await
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn dropped_savepoint_is_rolled_back_and_released_one_is_kept() {
    let fixture = Fixture::new().await;
    let (kept, dropped) = (message(), message());
    let other = &dropped;
    let idem = Idem::new();
    let processed = idem.process(&fixture.pool, &kept, |mut tx: Tx, message| async move {
        {
            let savepoint = tx.savepoint().await?;
            insert(&savepoint, other).await?;
        }
        let mut outer = tx.savepoint().await?;
        {
            // The inner savepoint is dropped after one of its statements has failed.
            let inner = outer.savepoint().await?;
            insert(&inner, other).await?;
            assert!(inner.batch_execute("SELECT 1 / 0").await.is_err());
        }
        insert(&outer, &message).await?;
        outer.release().await?;
        Ok(vec![fact()])
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture.assert_done_once(&kept).await;
    assert_eq!(fixture.work(&dropped).await, 0);
}

/// Goal: the start of an inner savepoint is cancelled. A later rollback of the outer savepoint
/// still rolls back to the outer savepoint.
#[tokio::test]
async fn cancelled_savepoint_leaves_the_outer_one_intact() {
    use futures_util::FutureExt;
    let fixture = Fixture::new().await;
    let message = message();
    let idem = Idem::new();
    let processed = idem.process(&fixture.pool, &message, |mut tx: Tx, message| async move {
        let mut outer = tx.savepoint().await?;
        insert(&outer, &message).await?;
        // The statement that starts the inner savepoint is sent, but its result is not awaited.
        assert!(outer.savepoint().now_or_never().is_none());
        outer.rollback().await?;
        work(tx, message).await
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture.assert_done_once(&message).await;
}

/// Goal: the release of an inner savepoint fails. A later rollback of the outer savepoint still
/// rolls back to the outer savepoint.
#[tokio::test]
async fn unreleased_savepoint_leaves_the_outer_one_intact() {
    let fixture = Fixture::new().await;
    let (message, other) = (message(), message());
    let rolled_back = &other;
    let idem = Idem::new();
    let processed = idem.process(&fixture.pool, &message, |mut tx: Tx, message| async move {
        let mut outer = tx.savepoint().await?;
        insert(&outer, rolled_back).await?;
        let inner = outer.savepoint().await?;
        assert!(inner.batch_execute("SELECT 1 / 0").await.is_err());
        assert!(inner.release().await.is_err());
        outer.rollback().await?;
        work(tx, message).await
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture.assert_done_once(&message).await;
    assert_eq!(fixture.work(&other).await, 0);
}
