//! A proxy that removes comments from statements, so that COMMIT arrives without its mark.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use idem_client::Error as Call;
use idem_runtime::{Error, Handled, Idem, Message, Processed, Tx};
use idem_testkit::{Database, proxy::Proxy};

fn message(id: &str) -> Message {
    Message::new("poolers.tests", "{}").with_message_id(id)
}

/// I2, I10: the first COMMIT without its mark fails, and the transaction is repeated. From then on
/// the process allows each COMMIT, and still notices a handler that ends its transaction. This is
/// one test, because all tests of a process share what it has learned.
#[tokio::test]
async fn i10_removed_comment_costs_one_attempt() {
    let database = Database::create();
    let observer = database.client().await;
    observer
        .batch_execute("CREATE TABLE work (id text); CREATE ROLE comments_tenant")
        .await
        .unwrap();
    let proxy = Proxy::to(&database).await;
    proxy.remove_comments();
    let pool = proxy.pool(1);
    let attempts = AtomicUsize::new(0);
    let idem = Idem::new();
    let process = |id: &'static str, end: &'static str| {
        let (idem, pool, attempts) = (&idem, &pool, &attempts);
        async move {
            let message = message(id);
            let handler = async |tx: Tx, message: Message| -> Handled {
                attempts.fetch_add(1, SeqCst);
                tx.execute_typed(
                    "INSERT INTO work VALUES ($1)",
                    &[(&message.message_id(), tokio_postgres::types::Type::TEXT)],
                )
                .await?;
                let _ = tx.batch_execute(end).await;
                Ok(vec![])
            };
            idem.process(pool, &message, handler).await
        }
    };
    for (id, until_now) in [("first", 2), ("second", 3)] {
        let processed = process(id, "").await;
        assert!(
            matches!(processed, Ok(Processed::New { .. })),
            "{id}: {processed:?}"
        );
        assert_eq!(attempts.load(SeqCst), until_now, "{id}");
    }
    let rows = "SELECT count(*), count(DISTINCT id) FROM work";
    let row = observer.query_one(rows, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 2));

    let ended = process("ended", "ROLLBACK").await;
    let ended = matches!(ended, Err(Error::Client(Call::TransactionEnded)));
    assert!(ended, "a handler that executes ROLLBACK");
    let failed = process("failed", "SELECT 1 / 0").await.unwrap_err();
    let state = failed.sqlstate().map(|state| state.code());
    assert_eq!(state, Some("25P02"), "{failed:?}");
    let changed = process("changed", "SET LOCAL ROLE comments_tenant").await;
    let changed = matches!(changed, Err(Error::Client(Call::SettingsChanged(_))));
    assert!(changed, "a handler that keeps another role");
    let count: i64 = observer.query_one(rows, &[]).await.unwrap().get(0);
    assert_eq!(count, 2);
}
