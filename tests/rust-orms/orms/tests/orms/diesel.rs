//! diesel-async.

use anyhow::{Result, bail};
use diesel::prelude::*;
use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use idem_client::{Claim, ClaimOptions, Error, ErrorKind, Executor, claim, try_claim};
use idem_rust_orms::consumers::diesel::{handle, pay, payment};
use idem_rust_orms::consumers::{Faults, Message, Point};
use idem_rust_orms::idem_diesel::{DieselConnection, DieselTransaction, translated};
use idem_testkit::proxy::{Cut, Proxy};

use crate::fixtures::{self, Fixture, facts, id, payments};
use crate::rules;

/// Goal: the claim, the work of the query builder and the effects commit or roll back together.
/// Invariants: I1, I2, I3.
#[tokio::test]
async fn claim_commits_with_the_work() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let (m, options) = (id("m"), ClaimOptions::default().fingerprint([1, 2]));
    for end in ["roll back", "commit", "duplicate"] {
        let ended: Result<()> = conn
            .transaction(async |conn| {
                let idem = DieselTransaction::new(conn)?;
                let outcome = claim(&idem, &m, &payments(), &options).await?;
                assert_eq!(outcome.is_duplicate(), end == "duplicate");
                if let Claim::New(claim) = outcome {
                    pay(&mut *idem.connection()?, &fixtures::payment("m")).await?;
                    assert_eq!(claim.record_effects(&facts()).await?.len(), 2);
                } else {
                    rules::later_claims_have_their_outcomes(&idem, &fixture, &m).await;
                }
                idem.check().await?;
                if end == "roll back" {
                    bail!(end);
                }
                Ok(())
            })
            .await;
        let committed = end != "roll back";
        assert_eq!(ended.is_ok(), committed, "{ended:?}");
        assert_eq!(fixture.is_claimed(&m).await, committed, "{end}");
        let expected = if committed { (1, 995) } else { (0, 1000) };
        assert_eq!(fixture.paid().await, expected, "{end}");
        let recorded = fixture.recorded(&m).await;
        assert_eq!(recorded.len(), 2 * usize::from(committed), "{end}");
    }
}

#[tokio::test]
async fn redelivered_message_is_paid_once() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    for _ in 0..2 {
        let message = fixtures::payment("m");
        handle(&mut conn, &message, Faults::default())
            .await
            .unwrap();
    }
    assert_eq!(fixture.paid().await, (1, 995));
}

#[tokio::test]
async fn every_function_works() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let connection = DieselConnection::new(&mut conn).unwrap();
    rules::connection_leases_and_receives(&connection).await;
    rules::values_pass_unchanged(&connection).await;
    let ended: Result<()> = conn
        .transaction(async |conn| {
            let idem = DieselTransaction::new(conn)?;
            rules::batches_of_texts_and_uuids_are_claimed(&idem).await;
            rules::values_pass_unchanged(&idem).await;
            Ok(idem.check().await?)
        })
        .await;
    ended.unwrap();
    assert!(fixture.is_claimed(&id("b")).await);
}

/// Goal: an error has the SQLSTATE that diesel returns a kind for. Any other error has the message
/// and the hint of the server.
#[tokio::test]
async fn error_has_what_diesel_returns() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let connection = DieselConnection::new(&mut conn).unwrap();
    let sql = "SELECT idem_set_retention('short', '0')";
    let error = connection.fetch_one(sql, &[]).await.unwrap_err();
    let direct = fixture.observer.fetch_one(sql, &[]).await.unwrap_err();
    assert_eq!(direct.to_string(), format!("22023: {error}"));
    assert_eq!((error.sqlstate(), error.kind()), (None, ErrorKind::Other));

    // diesel has no kind for 55P03 and 40P01, so these conflicts are not retryable.
    let mut holder = fixture.diesel().await;
    let lock = "BEGIN; LOCK TABLE payment NOWAIT";
    holder.batch_execute(lock).await.unwrap();
    let locked = fixture.diesel().await.batch_execute(lock).await;
    let error = translated(locked.unwrap_err());
    assert_eq!((error.sqlstate(), error.is_retryable()), (None, false));
    holder.batch_execute("ROLLBACK").await.unwrap();

    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    let error = translated(holder.batch_execute(end).await.unwrap_err());
    assert_eq!(
        (error.sqlstate(), error.kind()),
        (None, ErrorKind::Other),
        "{error}"
    );

    let negative = (payment::account.eq(7), payment::cents.eq(-1_i64));
    let insert = diesel::insert_into(payment::table).values(negative);
    let error = translated(insert.execute(&mut conn).await.unwrap_err());
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("23514"));
}

/// Goal: two serializable transactions that conflict: the error of one can be repeated.
#[tokio::test]
async fn conflict_is_retryable() {
    let fixture = Fixture::new().await;
    let (mut first, mut second) = (fixture.diesel().await, fixture.diesel().await);
    let pay = "UPDATE account SET balance = balance - 1";
    for conn in [&mut first, &mut second] {
        let begin = "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT balance FROM account";
        conn.batch_execute(begin).await.unwrap();
    }
    first.batch_execute(pay).await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    let error = translated(second.batch_execute(pay).await.unwrap_err());
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("40001"));
    assert!(error.is_retryable());
}

/// Goal: a connection without a transaction claims nothing. With `try_claim` on a
/// `DieselConnection` it does not compile.
#[tokio::test]
async fn claim_without_a_transaction_is_rejected() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    for error in [
        DieselTransaction::new(&mut conn).map(drop).unwrap_err(),
        DieselTransaction::nested(&mut conn).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("conn.transaction"), "{error}");
    }
    let lone = diesel::sql_query("SELECT idem_try_claim('m', 'payments')");
    let error = translated(lone.execute(&mut conn).await.unwrap_err());
    assert!(
        error.to_string().contains("alone in its transaction"),
        "{error}"
    );
    assert!(!fixture.is_claimed(&id("m")).await);
}

/// Goal: a connection whose BEGIN was abandoned executes no function: it would not commit.
#[tokio::test]
async fn connection_with_an_abandoned_begin_is_rejected() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let begun = conn.transaction::<(), DieselError, _>(async |_| panic!("BEGIN has no reply"));
    assert!(begun.now_or_never().is_none());
    fixture.until_idle_in_transaction(1).await;
    assert!(DieselConnection::new(&mut conn).is_err());
}

/// Goal: a handler works in a test transaction of diesel, which is never committed.
#[tokio::test]
async fn test_transaction_is_not_the_outermost() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    conn.begin_test_transaction().await.unwrap();
    for _ in 0..2 {
        let message = fixtures::payment("m");
        handle(&mut conn, &message, Faults::default())
            .await
            .unwrap();
    }
    let payments = payment::table.count().get_result::<i64>(&mut conn).await;
    assert_eq!(payments.unwrap(), 1);
    assert_eq!(fixture.paid().await, (0, 1000));
}

#[tokio::test]
async fn borrowed_connection_fails_instead_of_waiting() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let ended: Result<()> = conn
        .transaction(async |conn| {
            let idem = DieselTransaction::new(conn)?;
            let borrowed = idem.connection()?;
            let error = try_claim(&idem, &id("m"), &payments()).await.unwrap_err();
            assert!(error.to_string().contains("is in use"), "{error}");
            drop(borrowed);
            assert!(try_claim(&idem, &id("m"), &payments()).await?.is_new());
            Ok(())
        })
        .await;
    ended.unwrap();
}

async fn ignore(
    conn: &mut AsyncPgConnection,
    statement: &str,
    is_checked: bool,
) -> Result<(), Error> {
    let idem = DieselTransaction::new(conn)?;
    let claim = try_claim(&idem, &id("m"), &payments()).await?;
    assert!(claim.is_new());
    // The division fails, and the handler ignores it.
    let _ = idem.connection()?.batch_execute(statement).await;
    if is_checked {
        idem.check().await?;
    }
    Ok(())
}

/// Goal: a handler that ignores the error of a statement, or that ends the transaction, is not
/// acknowledged. The commit of diesel itself reports success.
#[tokio::test]
async fn check_fails_without_an_open_transaction() {
    let fixture = Fixture::new().await;
    for statement in ["SELECT 1 / 0", "ROLLBACK"] {
        for is_checked in [true, false] {
            let mut conn = fixture.diesel().await;
            let ended: Result<()> = conn
                .transaction(async |conn| Ok(ignore(conn, statement, is_checked).await?))
                .await;
            assert_eq!(ended.is_err(), is_checked, "{statement}: {ended:?}");
            assert!(!fixture.is_claimed(&id("m")).await, "{statement}");
        }
    }
}

async fn claims(idem: &DieselTransaction<'_>, name: &str) -> Result<()> {
    let claim = try_claim(idem, &id(name), &payments()).await?;
    let claim = claim.into_new().expect("a new message");
    pay(&mut *idem.connection()?, &fixtures::payment(name)).await?;
    claim.record_effects(&facts()).await?;
    Ok(())
}

/// Claims `middle`, and `inner` in a further nested transaction, which is rolled back.
async fn claims_in_nested(conn: &mut AsyncPgConnection, inner_end: &str) -> Result<()> {
    claims(
        &DieselTransaction::nested(conn)?,
        &format!("middle {inner_end}"),
    )
    .await?;
    let inner: Result<()> = conn
        .transaction(async |conn| {
            let idem = DieselTransaction::nested(conn)?;
            claims(&idem, &format!("inner {inner_end}")).await?;
            if inner_end == "fails" {
                idem.connection()?.batch_execute("SELECT 1 / 0").await?;
            }
            bail!("roll back")
        })
        .await;
    inner.unwrap_err();
    claims(
        &DieselTransaction::nested(conn)?,
        &format!("after {inner_end}"),
    )
    .await
}

/// Goal: the end of a nested transaction is that of its claim, its work and its effects, at each
/// depth. Invariants: I1, I2.
#[tokio::test]
async fn nested_rollback_discards_its_claim() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    for inner_end in ["fails", "bails"] {
        let ended: Result<()> = conn
            .transaction(async |conn| {
                let outermost = DieselTransaction::new(conn)?;
                claims(&outermost, &format!("outermost {inner_end}")).await?;
                conn.transaction(async |conn| claims_in_nested(conn, inner_end).await)
                    .await?;
                let idem = DieselTransaction::new(conn)?;
                Ok(idem.check().await?)
            })
            .await;
        ended.unwrap();
        for (depth, is_committed) in [
            ("outermost", true),
            ("middle", true),
            ("inner", false),
            ("after", true),
        ] {
            let m = id(&format!("{depth} {inner_end}"));
            assert_eq!(fixture.is_claimed(&m).await, is_committed, "{m}");
            let recorded = fixture.recorded(&m).await;
            assert_eq!(recorded.len(), 2 * usize::from(is_committed), "{m}");
        }
    }
    assert_eq!(fixture.paid().await, (6, 970));
}

/// Goal: a connection whose transaction was abandoned, because its future was dropped, processes no
/// message: the transaction of diesel would be a savepoint that commits nothing. Invariant: I2.
#[tokio::test]
async fn cancelled_handler_is_not_followed_by_a_lost_message() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let stop_at = Some(Point::BeforeCommit);
    let faults = Faults {
        stop_at,
        ..Faults::default()
    };
    let first = fixtures::payment("first");
    tokio::select! {
        ended = handle(&mut conn, &first, faults) => panic!("{ended:?}"),
        () = fixture.until_idle_in_transaction(1) => {}
    }
    let second = fixtures::payment("second");
    let ended = handle(&mut conn, &second, Faults::default()).await;
    assert!(DieselConnection::new(&mut conn).is_err());
    let error = ended.unwrap_err().downcast::<Error>().unwrap();
    assert!(error.to_string().contains("the outermost"), "{error}");
    // The message is not at fault.
    assert_eq!(error.kind(), ErrorKind::Other);
    assert!(!fixture.is_claimed(&id("second")).await);
    drop(conn);
    let mut conn = fixture.diesel().await;
    for message in [&first, &second] {
        handle(&mut conn, message, Faults::default()).await.unwrap();
    }
    assert_eq!(fixture.paid().await, (2, 990));
}

/// Goal: after a COMMIT whose reply is lost, the message is not acknowledged, and the next claim
/// returns whether the transaction committed. Invariant: I2.
#[tokio::test]
async fn lost_reply_to_commit_is_an_error() {
    let fixture = Fixture::new().await;
    for (cut, is_committed) in [(Cut::BeforeCommit, false), (Cut::AfterCommit, true)] {
        let name = format!("{cut:?}");
        let message = fixtures::payment(&name);
        let proxy = Proxy::to(&fixture.database).await;
        let mut conn = AsyncPgConnection::establish(proxy.url()).await.unwrap();
        proxy.cut_once(cut);
        let error = handle(&mut conn, &message, Faults::default())
            .await
            .unwrap_err();
        let error = translated(error.downcast::<DieselError>().unwrap());
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error:?}");
        assert!(proxy.was_cut());
        assert_eq!(fixture.is_claimed(&id(&name)).await, is_committed);
        let mut conn = fixture.diesel().await;
        handle(&mut conn, &message, Faults::default())
            .await
            .unwrap();
    }
    assert_eq!(fixture.paid().await, (2, 990));
}

/// Goal: a failed payment rolls its claim back, and the message can be processed again.
#[tokio::test]
async fn failed_work_rolls_the_claim_back() {
    let fixture = Fixture::new().await;
    let mut conn = fixture.diesel().await;
    let wrong = Message {
        cents: -1,
        ..fixtures::payment("m")
    };
    let error = handle(&mut conn, &wrong, Faults::default())
        .await
        .unwrap_err();
    let error = translated(error.downcast::<DieselError>().unwrap());
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("23514"));
    assert_eq!(fixture.paid().await, (0, 1000));
    let right = fixtures::payment("m");
    handle(&mut conn, &right, Faults::default()).await.unwrap();
    assert_eq!(fixture.paid().await, (1, 995));
}
