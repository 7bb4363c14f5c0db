//! Errors: their SQLSTATE, hint and kind, and what they leave.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idem_client::redacted::causes;
use idem_client::{Error, ErrorKind, Executor, inbox, try_claim};
use idem_sqlx::{SqlxConnection, SqlxTransaction, commit, driver_error_in, translated};
use idem_testkit::proxy::{Cut, Proxy};

use tokio_postgres::types::Json;

use crate::fixtures::{Fixture, claims, destination, id, pid_of, pool};

#[tokio::test]
async fn error_of_the_server_has_its_sqlstate_and_hint() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let sql = "SELECT idem_set_retention('short', '0')";
    let error = idem.fetch_one(sql, &[]).await.unwrap_err();
    let direct = fixture.observer.fetch_one(sql, &[]).await.unwrap_err();
    assert_eq!(error.sqlstate(), direct.sqlstate());
    assert_eq!(error.kind(), direct.kind());
    assert_eq!(error.to_string(), direct.to_string());
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // The connection is usable.
    assert!(idem.fetch_one("SELECT 1", &[]).await.is_ok());
}

/// Goal: a lost conflict can be repeated, and each kind is that of the driver of the client.
#[tokio::test]
async fn conflict_is_retryable() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE work")
        .execute(&mut *tx)
        .await
        .unwrap();
    let mut other = fixture.pool.begin().await.unwrap();
    let error = sqlx::query("LOCK TABLE work NOWAIT")
        .execute(&mut *other)
        .await;
    let error = translated(error.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.is_retryable());
}

/// Goal: a pool without a free connection is an error of the environment.
#[tokio::test]
async fn exhausted_pool_is_retryable() {
    let fixture = Fixture::new().await;
    let options = fixture.pool.options().clone().max_connections(1);
    let options = options.acquire_timeout(Duration::from_millis(50));
    let pool = options.connect_lazy_with((*fixture.pool.connect_options()).clone());
    let _only = pool.acquire().await.unwrap();
    let error = translated(pool.acquire().await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::PoolExhausted, "{error}");
    assert!(error.is_retryable());
}

/// Goal: the text of an error names its cause once, and quotes no value of a payload.
#[tokio::test]
async fn text_of_an_error_quotes_no_value() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let row = idem
        .fetch_one(r#"SELECT '{"card": "4111-secret"}'::jsonb"#, &[])
        .await
        .unwrap();
    let error = row.try_get::<_, Json<HashMap<String, i32>>>(0).unwrap_err();
    let text = causes(&error, |_| false);
    assert!(
        text.contains("invalid type") && !text.contains("secret"),
        "{text}"
    );
    let error = idem.fetch_one("SELECT 1 / 0", &[]).await.unwrap_err();
    assert_eq!(causes(&error, |_| false), "22012: division by zero");
}

#[tokio::test]
async fn ended_session_is_a_lost_connection() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut tx = fixture.pool.begin().await.unwrap();
    let pid = pid_of(&mut tx).await;
    let end = "SELECT pg_terminate_backend($1, 60000)";
    fixture.observer.query_one(end, &[&pid]).await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    for _ in 0..2 {
        let error = try_claim(&idem, &id, &to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error:?}");
    }
    drop(tx);
    assert!(!fixture.is_claimed(&id).await);
}

/// Goal: the error with which the server ends a session is a lost connection too.
#[tokio::test]
async fn session_that_ends_during_a_claim_is_lost() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut holder = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut holder, &id).await.unwrap());
    let mut tx = fixture.pool.begin().await.unwrap();
    let pid = pid_of(&mut tx).await;
    let idem = SqlxTransaction::new(&mut tx);
    let end = async {
        fixture.database.until_blocked(pid).await.unwrap();
        let end = "SELECT pg_terminate_backend($1)";
        fixture.observer.query_one(end, &[&pid]).await.unwrap();
    };
    let (claimed, ()) = tokio::join!(try_claim(&idem, &id, &to), end);
    let error = claimed.unwrap_err();
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("57P01"));
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    commit(holder).await.unwrap();
    assert!(fixture.is_claimed(&id).await);
}

/// Goal: after a COMMIT whose reply is lost, the message is not acknowledged, and the next claim
/// returns whether the transaction committed. Invariant: I2.
#[tokio::test]
async fn lost_reply_to_commit_is_ambiguous() {
    let fixture = Fixture::new().await;
    for (cut, is_committed) in [(Cut::BeforeCommit, false), (Cut::AfterCommit, true)] {
        let id = id(&format!("{cut:?}"));
        let proxy = Proxy::to(&fixture.database).await;
        let pool = pool(&proxy.config()).await;
        let mut tx = pool.begin().await.unwrap();
        assert!(claims(&mut tx, &id).await.unwrap());
        proxy.cut_once(cut);
        let error = commit(tx).await.unwrap_err();
        assert!(proxy.was_cut());
        assert_eq!(error.kind(), ErrorKind::AmbiguousCommit, "{error:?}");
        assert_eq!(fixture.is_claimed(&id).await, is_committed);
    }
}

/// Goal: a handler that ignores the error of a statement is not acknowledged. The commit of sqlx
/// itself reports success.
#[tokio::test]
async fn commit_fails_after_a_failed_statement() {
    let fixture = Fixture::new().await;
    let id = id("m");
    for is_checked in [true, false] {
        let mut tx = fixture.pool.begin().await.unwrap();
        assert!(claims(&mut tx, &id).await.unwrap());
        sqlx::query("SELECT 1 / 0")
            .execute(&mut *tx)
            .await
            .unwrap_err();
        if is_checked {
            let error = commit(tx).await.unwrap_err();
            assert_eq!(error.sqlstate().map(|state| state.code()), Some("25P02"));
        } else {
            tx.commit().await.unwrap();
        }
        assert!(!fixture.is_claimed(&id).await);
    }
}

#[tokio::test]
async fn commit_fails_after_a_rollback_of_the_handler() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut tx, &id("m")).await.unwrap());
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    let error = commit(tx).await.unwrap_err();
    assert!(matches!(error, Error::TransactionEnded), "{error:?}");
    assert!(!fixture.is_claimed(&id("m")).await);
}

/// Goal: the server rejects a claim outside of a transaction that the compiler did not detect.
#[tokio::test]
async fn lone_claim_is_rejected() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.pool.begin().await.unwrap();
    sqlx::query("COMMIT").execute(&mut *tx).await.unwrap();
    let error = claims(&mut tx, &id("m")).await.unwrap_err();
    assert_eq!(
        error.sqlstate().map(|state| state.code()),
        Some("25P01"),
        "{error}"
    );
    assert!(!fixture.is_claimed(&id("m")).await);
}

/// Goal: an error of sqlx inside the error of a library has the same kind and text. The source is
/// the error of the library.
#[tokio::test]
async fn error_inside_another_error_is_classified() {
    #[derive(Debug)]
    struct OfLibrary(Arc<sqlx::Error>);

    impl fmt::Display for OfLibrary {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "library: {}", self.0)
        }
    }

    impl std::error::Error for OfLibrary {}

    let fixture = Fixture::new().await;
    let division = sqlx::query("SELECT 1 / 0").execute(&fixture.pool).await;
    let inner = Arc::new(division.unwrap_err());
    let error = driver_error_in(&inner, OfLibrary(Arc::clone(&inner)));
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("22012"));
    assert_eq!(error.to_string(), "22012: division by zero");
    assert_eq!(error.of_commit().kind(), ErrorKind::Other);

    let inner = Arc::new(sqlx::Error::WorkerCrashed);
    let error = driver_error_in(&inner, OfLibrary(Arc::clone(&inner)));
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    assert!(error.to_string().starts_with("library: "), "{error}");
    assert_eq!(error.of_commit().kind(), ErrorKind::AmbiguousCommit);
}

/// Goal: a result that the client does not expect is an error, and not a wrong value.
#[tokio::test]
async fn column_of_another_type_is_an_error() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let row = idem
        .fetch_one("SELECT 1 AS n, NULL::text", &[])
        .await
        .unwrap();
    assert_eq!(row.try_get::<_, i32>("n").unwrap(), 1);
    assert_eq!(row.try_get::<_, Option<String>>(1).unwrap(), None);
    for error in [
        row.try_get::<_, i64>("n").unwrap_err(),
        row.try_get::<_, String>(1).unwrap_err(),
        row.try_get::<_, i32>("m").unwrap_err(),
        row.try_get::<_, i32>(2).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unexpected(_)), "{error:?}");
    }
    for wrong in ["SELECT 1 WHERE false", "VALUES (1), (2)"] {
        let error = idem.fetch_one(wrong, &[]).await.unwrap_err();
        assert!(matches!(error, Error::Unexpected(_)), "{error:?}");
    }
    assert!(
        inbox::next(&idem, &destination(), 1, 1, Duration::from_secs(1))
            .await
            .is_ok()
    );
}
