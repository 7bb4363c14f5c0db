//! Tests which failures are retried.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use deadpool_postgres::{Manager, Pool, Runtime};
use idem_client::ErrorKind;
use idem_runtime::{
    Error, HandlerError, Idem, Message, Processed, Settlement, Tx,
    policy::{Isolation, Policy, Store, Style},
};
use idem_testkit::until;
use tokio_postgres::NoTls;

use crate::fixtures::{Fixture, fact, idem, insert, message, work};

/// Processes a message with a handler that runs `prelude` in its first `times` attempts. Returns
/// the result and the number of attempts.
async fn process_with(
    fixture: &Fixture,
    idem: &Idem,
    message: &Message,
    times: usize,
    prelude: &str,
) -> (Result<Processed, Error>, usize) {
    let calls = AtomicUsize::new(0);
    let processed = idem
        .process(&fixture.pool, message, |tx: Tx, message| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                insert(&tx, &message).await?;
                if call < times {
                    tx.batch_execute(prelude).await?;
                }
                tx.execute_typed("DELETE FROM work WHERE false", &[])
                    .await?;
                Ok(vec![fact()])
            }
        })
        .await;
    (processed, calls.into_inner())
}

const CONFLICT: &str = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$";
const TERMINATE: &str = "SELECT pg_terminate_backend(pg_backend_pid())";

#[tokio::test]
async fn conflict_or_lost_connection_repeats_claim_and_handler() {
    let fixture = Fixture::new().await;
    let rules: [fn(&mut Policy); 3] = [
        |policy| policy.style = Style::Eager,
        |policy| policy.style = Style::Reactive,
        // Without a claim.
        |policy| policy.store = Store::Memory,
    ];
    for rule in rules {
        for prelude in [CONFLICT, TERMINATE] {
            let message = message();
            let idem = idem(rule);
            let (processed, calls) = process_with(&fixture, &idem, &message, 2, prelude).await;
            assert!(
                matches!(processed, Ok(Processed::New { .. })),
                "{processed:?}"
            );
            assert_eq!(calls, 3);
            assert_eq!(fixture.work(&message).await, 1);
        }
    }
    fixture.until_quiet().await;
}

#[tokio::test]
async fn max_attempts_limits_the_retries() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.retry.max_attempts = 3;
        policy.retry.base = Duration::from_millis(1);
        policy.retry.cap = Duration::from_millis(4);
    });
    for (prelude, kind) in [
        (CONFLICT, ErrorKind::Conflict),
        (TERMINATE, ErrorKind::ConnectionLost),
    ] {
        let message = message();
        let (processed, calls) = process_with(&fixture, &idem, &message, usize::MAX, prelude).await;
        let error = processed.unwrap_err();
        assert_eq!((calls, error.kind()), (3, kind));
        assert_eq!(error.settlement(), Settlement::RETRY);
        fixture.assert_untouched(&message).await;
    }
}

#[tokio::test]
async fn conflict_at_commit_is_retried() {
    let fixture = Fixture::new().await;
    fixture
        .observer
        .batch_execute(
            "CREATE SEQUENCE attempts; CREATE TABLE late ();
             CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('attempts') < 3 THEN
                     RAISE EXCEPTION 'conflict' USING ERRCODE = '40001';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();",
        )
        .await
        .unwrap();
    let message = message();
    let late = "INSERT INTO late DEFAULT VALUES";
    let (processed, calls) = process_with(&fixture, &Idem::new(), &message, usize::MAX, late).await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
    assert_eq!(calls, 3);
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn concurrent_serializable_handlers_all_take_effect() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.isolation = Isolation::Serializable;
        policy.retry.max_attempts = 20;
    });
    let messages: Vec<_> = (0..4).map(|_| message()).collect();
    let all = messages.iter().map(|message| {
        idem.process(&fixture.pool, message, |tx: Tx, message| async move {
            // Each handler reads the rows that the concurrent handlers write, so the handlers
            // conflict.
            tx.query_typed("SELECT count(*) FROM work", &[]).await?;
            work(tx, message).await
        })
    });
    for processed in futures_util::future::join_all(all).await {
        assert!(
            matches!(processed, Ok(Processed::New { .. })),
            "{processed:?}"
        );
    }
    for message in &messages {
        fixture.assert_done_once(message).await;
    }
}

#[tokio::test]
async fn handler_error_is_not_retried() {
    let fixture = Fixture::new().await;
    let failures: [fn() -> HandlerError; 2] = [|| "no".into(), || HandlerError::terminal("never")];
    for failure in failures {
        let (message, calls) = (message(), AtomicUsize::new(0));
        let idem = Idem::new();
        let processed = idem.process(&fixture.pool, &message, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move {
                insert(&tx, &message).await?;
                Err(failure())
            }
        });
        let error = processed.await.unwrap_err();
        assert!(matches!(error, Error::Handler(_)), "{error:?}");
        assert_eq!(calls.into_inner(), 1);
        fixture.assert_untouched(&message).await;
    }
}

#[tokio::test]
/// Goal: a statement that the protocol cannot encode is an error of the handler, and not a lost
/// connection.
async fn unencodable_statement_is_a_handler_error() {
    let fixture = Fixture::new().await;
    for is_typed in [false, true] {
        let (message, calls) = (message(), AtomicUsize::new(0));
        let idem = Idem::new();
        let processed = idem.process(&fixture.pool, &message, |tx: Tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move {
                insert(&tx, &message).await?;
                // In the protocol, a zero byte ends a string, so this statement cannot be encoded.
                match is_typed {
                    true => drop(tx.query_typed("SELECT 'a\0b'", &[]).await?),
                    false => tx.batch_execute("SELECT 'a\0b'").await?,
                }
                Ok(vec![])
            }
        });
        assert_eq!(processed.await.unwrap_err().kind(), ErrorKind::Handler);
        assert_eq!(calls.into_inner(), 1);
        fixture.assert_untouched(&message).await;
    }
}

#[tokio::test]
async fn failed_connection_is_not_an_error_of_the_message() {
    // The path is longer than the limit for a socket path, so no connection is possible.
    let url = format!("host=/{} user=postgres", "x".repeat(200));
    let pool = Pool::builder(Manager::new(url.parse().unwrap(), NoTls))
        .build()
        .unwrap();
    let idem = idem(|policy| policy.retry.max_attempts = 1);
    let error = idem.process(&pool, &message(), work).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error:?}");
    assert!(error.to_string().contains("path"), "{error}");
}

#[tokio::test]
async fn exhausted_pool_is_an_error_after_the_wait_timeout() {
    let fixture = Fixture::new().await;
    let manager = Manager::new(fixture.database.url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager)
        .max_size(1)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_millis(20)))
        .build()
        .unwrap();
    let taken = pool.get().await.unwrap();
    let message = message();
    let error = Idem::new()
        .process(&pool, &message, work)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PoolExhausted);
    assert_eq!(error.settlement(), Settlement::RELEASE);
    // When the connection is returned, an attempt that still waits gets it.
    let idem = idem(|policy| policy.retry.max_attempts = 1000);
    let (processed, ()) = tokio::join!(idem.process(&pool, &message, work), async {
        until("an attempt waits", || async { pool.status().waiting > 0 }).await;
        drop(taken);
    });
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn abandoned_statement_does_not_delay_the_next_message() {
    let fixture = Fixture::new().await;
    let pool = fixture.database.pool(1);
    let message = message();
    let idem = Idem::new();
    // The first claim of a destination blocks other claims until its transaction ends, so claim one
    // message before the test.
    assert!(
        idem.process(&pool, &crate::fixtures::message(), work)
            .await
            .is_ok()
    );
    let processed = idem.process(&pool, &message, |tx: Tx, message| async move {
        insert(&tx, &message).await?;
        let sleep = tx.batch_execute("SELECT pg_sleep(3600)");
        tokio::time::timeout(Duration::from_millis(10), sleep)
            .await?
            .map_err(HandlerError::from)?;
        Ok(vec![])
    });
    assert_eq!(processed.await.unwrap_err().kind(), ErrorKind::Handler);
    let sleeping = fixture
        .count(
            "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity
             WHERE datname = current_database() AND query = 'SELECT pg_sleep(3600)'
             AND state = 'active'",
        )
        .await;
    assert_ne!(sleeping, 0);
    let next = crate::fixtures::message();
    let processed = idem.process(&pool, &next, |tx: Tx, message| async move {
        let row = tx
            .query_typed_one("SELECT pg_backend_pid()::bigint", &[])
            .await?;
        assert_ne!(row.get::<_, i64>(0), sleeping);
        work(tx, message).await
    });
    assert!(matches!(processed.await, Ok(Processed::New { .. })));
    fixture
        .count(&format!(
            "SELECT pg_terminate_backend({sleeping}::int)::int::bigint"
        ))
        .await;
    fixture.until_quiet().await;
    fixture.assert_untouched(&message).await;
}
