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
    let processed = idem.process(&fixture.pool, &message, |tx: Tx, message| async move {
        tx.batch_execute("SAVEPOINT mine").await?;
        insert(&tx, &message).await?;
        assert!(tx.batch_execute("SELECT 1 / 0").await.is_err());
        let undo = "ROLLBACK TO SAVEPOINT mine; RELEASE SAVEPOINT mine";
        tx.batch_execute(undo).await?;
        work(tx, message).await
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture.assert_done_once(&message).await;
}
