//! SeaORM.

use std::time::Duration;

use idem_client::tokio_postgres::types::Type;
use idem_client::{Claim, ClaimOptions, Error, ErrorKind, Executor, claim, try_claim};
use idem_rust_orms::consumers::seaorm::{handle, pay, payment};
use idem_rust_orms::consumers::{Faults, Message, Point};
use idem_rust_orms::idem_seaorm::{SeaOrm, check, commit, translated};
use idem_testkit::proxy::{Cut, Proxy};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, ConnectionTrait, DatabaseTransaction, DbErr};
use sea_orm::{ConnectOptions, Database, TransactionError, TransactionTrait};

use time::macros::datetime;

use crate::fixtures::{self, Fixture, facts, id, payments};
use crate::rules;

/// Goal: the claim, the work of the entities and the effects commit or roll back together.
/// Invariants: I1, I2, I3.
#[tokio::test]
async fn claim_commits_with_the_work() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    let (m, options) = (id("m"), ClaimOptions::default().fingerprint([1, 2]));
    for end in ["roll back", "commit", "duplicate"] {
        let tx = db.begin().await.unwrap();
        let idem = SeaOrm(&tx);
        let outcome = claim(&idem, &m, &payments(), &options).await.unwrap();
        assert_eq!(outcome.is_duplicate(), end == "duplicate");
        if let Claim::New(claim) = outcome {
            pay(&tx, &fixtures::payment("m")).await.unwrap();
            assert_eq!(claim.record_effects(&facts()).await.unwrap().len(), 2);
        } else {
            rules::later_claims_have_their_outcomes(&idem, &fixture, &m).await;
        }
        match end {
            "roll back" => tx.rollback().await.unwrap(),
            _ => commit(tx).await.unwrap(),
        }
        let committed = end != "roll back";
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
    let db = fixture.seaorm().await;
    for _ in 0..2 {
        let message = fixtures::payment("m");
        handle(&db, &message, Faults::default()).await.unwrap();
    }
    assert_eq!(fixture.paid().await, (1, 995));
}

#[tokio::test]
async fn every_function_works() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    rules::connection_leases_and_receives(&SeaOrm(&db)).await;
    rules::values_pass_unchanged(&SeaOrm(&db)).await;
    // A time before the year 1 is an error, and not another time.
    for at in [
        datetime!(0000-06-01 00:00 UTC),
        datetime!(-4000-01-01 00:00 UTC),
    ] {
        let early: rules::Parameter = (&at, Type::TIMESTAMPTZ);
        let error = SeaOrm(&db).fetch_one("SELECT $1", &[early]).await;
        assert!(!error.unwrap_err().is_retryable());
    }
    let tx = db.begin().await.unwrap();
    rules::batches_of_texts_and_uuids_are_claimed(&SeaOrm(&tx)).await;
    rules::values_pass_unchanged(&SeaOrm(&tx)).await;
    commit(tx).await.unwrap();
    assert!(fixture.is_claimed(&id("b")).await);
}

/// Goal: an error has the SQLSTATE, the hint and the kind that `tokio-postgres` returns.
#[tokio::test]
async fn error_has_its_sqlstate() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    let sql = "SELECT idem_set_retention('short', '0')";
    let error = SeaOrm(&db).fetch_one(sql, &[]).await.unwrap_err();
    let direct = fixture.observer.fetch_one(sql, &[]).await.unwrap_err();
    assert_eq!(error.to_string(), direct.to_string());
    assert_eq!(error.sqlstate(), direct.sqlstate());
    assert_eq!(error.kind(), ErrorKind::Invalid);

    let negative = payment::ActiveModel {
        account: Set(7),
        cents: Set(-1),
        ..Default::default()
    };
    let error = translated(negative.insert(&db).await.unwrap_err());
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("23514"));
    let tx = db.begin().await.unwrap();
    tx.execute_unprepared("LOCK TABLE payment").await.unwrap();
    let locked = db
        .execute_unprepared("BEGIN; LOCK TABLE payment NOWAIT")
        .await;
    assert!(translated(locked.unwrap_err()).is_retryable());
}

/// Goal: a pool without a free connection is an error that can be repeated.
#[tokio::test]
async fn exhausted_pool_is_retryable() {
    let fixture = Fixture::new().await;
    let mut options = ConnectOptions::new(fixtures::url(&fixture.config()));
    options.max_connections(1);
    options.acquire_timeout(Duration::from_millis(100));
    let db = Database::connect(options).await.unwrap();
    let holder = db.begin().await.unwrap();
    let error = translated(db.begin().await.map(drop).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::PoolExhausted);
    assert!(error.is_retryable());
    holder.rollback().await.unwrap();
    db.begin().await.unwrap().rollback().await.unwrap();
}

/// Goal: a claim on the pool does not commit alone. With `try_claim` it does not compile.
#[tokio::test]
async fn claim_on_the_pool_is_rejected() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    let sql = "SELECT idem_try_claim('m', 'payments')";
    let error = SeaOrm(&db).fetch_one(sql, &[]).await.unwrap_err();
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("25P01"));
    assert!(!fixture.is_claimed(&id("m")).await);
}

/// Goal: a handler that ignores the error of a statement, or that ends the transaction, is not
/// acknowledged. The commit of SeaORM itself reports success.
#[tokio::test]
async fn commit_fails_without_an_open_transaction() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    for (statement, state) in [("SELECT 1 / 0", Some("25P02")), ("ROLLBACK", None)] {
        for is_checked in [true, false] {
            let tx = db.begin().await.unwrap();
            let m = id("m");
            assert!(
                try_claim(&SeaOrm(&tx), &m, &payments())
                    .await
                    .unwrap()
                    .is_new()
            );
            // The division fails, and the handler ignores it.
            let _ = tx.execute_unprepared(statement).await;
            if !is_checked {
                tx.commit().await.unwrap();
            } else if let Some(state) = state {
                let error = commit(tx).await.unwrap_err();
                assert_eq!(error.sqlstate().map(|found| found.code()), Some(state));
            } else {
                let error = commit(tx).await.unwrap_err();
                assert!(matches!(error, Error::TransactionEnded), "{error:?}");
            }
            assert!(!fixture.is_claimed(&m).await, "{statement}");
        }
    }
}

/// Goal: in the closure of `transaction`, `check` makes a failed statement an error.
#[tokio::test]
async fn closure_fails_after_a_failed_statement() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    for (statement, is_ok) in [("SELECT 1 / 0", false), ("SELECT 1", true)] {
        let ended = db.transaction::<_, (), Error>(|tx| {
            Box::pin(async move {
                let idem = SeaOrm(tx);
                assert!(try_claim(&idem, &id("m"), &payments()).await?.is_new());
                let _ = tx.execute_unprepared(statement).await;
                check(tx).await
            })
        });
        assert_eq!(ended.await.is_ok(), is_ok, "{statement}");
        assert_eq!(fixture.is_claimed(&id("m")).await, is_ok, "{statement}");
    }
}

async fn claims(tx: &DatabaseTransaction, name: &str) {
    let (id, idem) = (id(name), SeaOrm(tx));
    let claim = try_claim(&idem, &id, &payments()).await.unwrap();
    claim
        .into_new()
        .unwrap()
        .record_effects(&facts())
        .await
        .unwrap();
    pay(tx, &fixtures::payment(name)).await.unwrap();
}

/// Goal: the end of a nested transaction is that of its claim, its work and its effects, at each
/// depth. Invariants: I1, I2.
#[tokio::test]
async fn nested_rollback_discards_its_claim() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    for inner_end in ["roll back", "fail and drop"] {
        let name = |depth: &str| format!("{inner_end}: {depth}");
        let tx = db.begin().await.unwrap();
        claims(&tx, &name("outermost")).await;
        let middle = tx.begin().await.unwrap();
        claims(&middle, &name("middle")).await;
        let inner = middle.begin().await.unwrap();
        claims(&inner, &name("inner")).await;
        if inner_end == "roll back" {
            inner.rollback().await.unwrap();
        } else {
            inner.execute_unprepared("SELECT 1 / 0").await.unwrap_err();
            drop(inner);
        }
        claims(&middle, &name("after")).await;
        middle.commit().await.unwrap();
        commit(tx).await.unwrap();
        for (depth, is_committed) in [
            ("outermost", true),
            ("middle", true),
            ("inner", false),
            ("after", true),
        ] {
            let m = id(&name(depth));
            assert_eq!(fixture.is_claimed(&m).await, is_committed, "{m}");
            let recorded = fixture.recorded(&m).await;
            assert_eq!(recorded.len(), 2 * usize::from(is_committed), "{m}");
        }
    }
    assert_eq!(fixture.paid().await, (6, 970));
}

/// A limit of SeaORM, which the guide names: the commit of a transaction reports success while a
/// nested one is open, and nothing is committed. A nested one that was dropped is no problem.
#[tokio::test]
async fn open_nested_transaction_makes_commit_do_nothing() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    for is_open in [true, false] {
        let m = format!("{is_open}");
        let tx = db.begin().await.unwrap();
        claims(&tx, &m).await;
        let nested = tx.begin().await.unwrap();
        let nested = is_open.then_some(nested);
        commit(tx).await.unwrap();
        drop(nested);
        assert_eq!(fixture.is_claimed(&id(&m)).await, !is_open);
    }
    assert_eq!(fixture.paid().await, (1, 995));
}

/// Goal: a handler whose future is dropped leaves no open transaction in the pool.
#[tokio::test]
async fn cancelled_handler_rolls_back() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    let (message, stop_at) = (fixtures::payment("m"), Some(Point::BeforeCommit));
    let faults = Faults {
        stop_at,
        ..Faults::default()
    };
    tokio::select! {
        ended = handle(&db, &message, faults) => panic!("{ended:?}"),
        () = fixture.until_idle_in_transaction(1) => {}
    }
    fixture.until_idle_in_transaction(0).await;
    assert!(!fixture.is_claimed(&id("m")).await);
    handle(&db, &message, Faults::default()).await.unwrap();
    assert_eq!(fixture.paid().await, (1, 995));
}

/// Goal: after a COMMIT whose reply is lost, the next claim returns whether the transaction
/// committed. Invariant: I2.
#[tokio::test]
async fn lost_reply_to_commit_is_ambiguous() {
    let fixture = Fixture::new().await;
    for (cut, is_committed) in [(Cut::BeforeCommit, false), (Cut::AfterCommit, true)] {
        let m = id(&format!("{cut:?}"));
        let proxy = Proxy::to(&fixture.database).await;
        let db = fixtures::seaorm(&proxy.config()).await;
        let tx = db.begin().await.unwrap();
        assert!(
            try_claim(&SeaOrm(&tx), &m, &payments())
                .await
                .unwrap()
                .is_new()
        );
        proxy.cut_once(cut);
        let error = commit(tx).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AmbiguousCommit, "{error:?}");
        assert_eq!(fixture.is_claimed(&m).await, is_committed);

        proxy.cut_once(cut);
        let ended = db.transaction::<_, (), Error>(|tx| {
            Box::pin(async move {
                tx.execute_unprepared("INSERT INTO queue VALUES (gen_random_uuid()::text, 7, 5)")
                    .await
                    .map_err(translated)?;
                check(tx).await
            })
        });
        let TransactionError::Connection(error) = ended.await.unwrap_err() else {
            panic!("the closure succeeds");
        };
        assert_eq!(translated(error).kind(), ErrorKind::ConnectionLost);
        assert_eq!(fixture.queued().await, i64::from(is_committed));
    }
}

/// Goal: a failed payment rolls its claim back, and the message can be processed again.
#[tokio::test]
async fn failed_work_rolls_the_claim_back() {
    let fixture = Fixture::new().await;
    let db = fixture.seaorm().await;
    let wrong = Message {
        cents: -1,
        ..fixtures::payment("m")
    };
    let error = handle(&db, &wrong, Faults::default()).await.unwrap_err();
    let error = translated(error.downcast::<DbErr>().unwrap());
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("23514"));
    assert_eq!(fixture.paid().await, (0, 1000));
    let right = fixtures::payment("m");
    handle(&db, &right, Faults::default()).await.unwrap();
    assert_eq!(fixture.paid().await, (1, 995));
}
