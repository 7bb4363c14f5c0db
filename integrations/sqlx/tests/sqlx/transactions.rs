//! Claims in transactions of sqlx.

use std::pin::pin;
use std::time::Duration;

use idem_client::lease::{Lease, acquire};
use idem_client::{Claim, ErrorKind, effects, is_claimed, try_claim};
use idem_sqlx::{SqlxConnection, SqlxTransaction, commit};
use sqlx::{Acquire, Postgres, Transaction};
use uuid::Uuid;

use crate::fixtures::{Fixture, claims, destination, fact, id, pid_of, pool};

/// Goal: the claim, the work and the effects commit or roll back together. Invariants: I1, I2.
#[tokio::test]
async fn claim_commits_with_the_work() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    for end in ["roll back", "commit", "duplicate"] {
        let mut tx = fixture.pool.begin().await.unwrap();
        let idem = SqlxTransaction::new(&mut tx);
        let claim = try_claim(&idem, &id, &to).await.unwrap();
        assert_eq!(claim.is_duplicate(), end == "duplicate");
        if let Claim::New(claim) = claim {
            sqlx::query("INSERT INTO work VALUES ($1)")
                .bind(id.to_string())
                .execute(&mut **idem.transaction().unwrap())
                .await
                .unwrap();
            let ids = claim.record_effects(&[fact(), fact()]).await.unwrap();
            assert_eq!(ids.len(), 2);
        }
        match end {
            "roll back" => tx.rollback().await.unwrap(),
            _ => commit(tx).await.unwrap(),
        }
        let committed = end != "roll back";
        assert_eq!(fixture.is_claimed(&id).await, committed, "{end}");
        assert_eq!(fixture.work(&id).await, i64::from(committed), "{end}");
        let recorded = effects(&fixture.observer, &id, &to).await.unwrap();
        assert_eq!(recorded.len(), 2 * usize::from(committed), "{end}");
    }
}

/// Goal: a transaction that is dropped after its claim claims nothing.
#[tokio::test]
async fn dropped_transaction_claims_nothing() {
    let fixture = Fixture::new().await;
    let id = id("m");
    let mut tx = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut tx, &id).await.unwrap());
    drop(tx);
    let mut tx = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut tx, &id).await.unwrap());
    tx.rollback().await.unwrap();
    assert!(!fixture.is_claimed(&id).await);
}

/// Goal: an id as a text and the same statement with a uuid claim two messages on one connection.
/// sqlx prepares a statement with the types of its first call. Invariant: I10.
#[tokio::test]
async fn text_and_uuid_use_statements_of_their_own() {
    let fixture = Fixture::new().await;
    let to = destination();
    let uuid = Uuid::new_v4();
    let ids = [id("m"), uuid.into(), id("m2"), Uuid::new_v4().into()];
    for id in &ids {
        let mut tx = fixture.pool.begin().await.unwrap();
        let idem = SqlxTransaction::new(&mut tx);
        assert!(try_claim(&idem, id, &to).await.unwrap().is_new(), "{id}");
        commit(tx).await.unwrap();
        assert!(fixture.is_claimed(id).await, "{id}");
    }
    // The text of a uuid is the same id.
    let mut tx = fixture.pool.begin().await.unwrap();
    assert!(!claims(&mut tx, &id(&uuid.to_string())).await.unwrap());
}

/// Goal: a call fails while the application has borrowed the transaction, and does not wait for its
/// own caller. Another message can be processed then, so the error is not one of the message.
#[tokio::test]
async fn borrowed_transaction_fails_instead_of_waiting() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let borrowed = idem.transaction().unwrap();
    for error in [
        try_claim(&idem, &id, &to).await.map(drop).unwrap_err(),
        idem.transaction().map(drop).unwrap_err(),
    ] {
        let text = "the transaction is in use: drop the value that `transaction` returned before \
                    this call";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.kind(), ErrorKind::Other);
    }
    drop(borrowed);
    assert!(try_claim(&idem, &id, &to).await.unwrap().is_new());
}

/// Goal: the same for a connection.
#[tokio::test]
async fn borrowed_connection_fails_instead_of_waiting() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let borrowed = idem.connection().unwrap();
    for error in [
        is_claimed(&idem, &id, &to).await.unwrap_err(),
        idem.connection().map(drop).unwrap_err(),
    ] {
        let text = "the connection is in use: drop the value that `connection` returned before \
                    this call";
        assert_eq!(error.to_string(), text);
    }
    drop(borrowed);
    assert!(!is_claimed(&idem, &id, &to).await.unwrap());
}

/// Goal: the application gets no transaction while a function of the client uses it. The error says
/// what the application can do.
#[tokio::test]
async fn transaction_in_use_by_a_function_is_not_borrowed() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut holder = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut holder, &id).await.unwrap());
    let mut tx = fixture.pool.begin().await.unwrap();
    let pid = pid_of(&mut tx).await;
    let idem = SqlxTransaction::new(&mut tx);
    let mut claim = pin!(try_claim(&idem, &id, &to));
    tokio::select! {
        claimed = &mut claim => panic!("the claim waits: {claimed:?}"),
        blocked = fixture.database.until_blocked(pid) => blocked.unwrap(),
    }
    let error = idem.transaction().map(drop).unwrap_err();
    let text = "the transaction is in use: await the function of the client before `transaction` \
                is called";
    assert_eq!(error.to_string(), text);
    holder.rollback().await.unwrap();
    assert!(claim.await.unwrap().is_new());
    assert!(idem.transaction().is_ok());
}

/// A limit of sqlx 0.9, which the README names: a BEGIN whose future is dropped leaves its
/// transaction open, so a lease is not committed. A claim is, because its COMMIT ends it.
#[tokio::test]
async fn abandoned_begin_leaves_a_transaction_open() {
    let fixture = Fixture::new().await;
    // The other connection of the pool, so that `begin` below gets this one again.
    let _other = fixture.pool.acquire().await.unwrap();
    let mut connection = fixture.pool.acquire().await.unwrap();
    tokio::select! {
        biased;
        _ = connection.begin() => panic!("BEGIN has a reply"),
        () = std::future::ready(()) => {}
    }
    let idem = SqlxConnection::new(&mut connection);
    let minute = Duration::from_secs(60);
    let lease = acquire(&idem, &id("leased"), &destination(), minute).await;
    assert!(matches!(lease.unwrap(), Lease::Acquired(_)));
    let open = "SELECT pid FROM pg_stat_activity \
                WHERE datname = current_database() AND state = 'idle in transaction'";
    let pids = fixture.observer.query(open, &[]).await.unwrap();
    drop(connection);
    let mut tx = fixture.pool.begin().await.unwrap();
    assert_eq!(pids[0].get::<_, i32>(0), pid_of(&mut tx).await);
    assert!(claims(&mut tx, &id("m")).await.unwrap());
    commit(tx).await.unwrap();
    assert!(fixture.is_claimed(&id("m")).await);
    assert!(fixture.observer.query(open, &[]).await.unwrap().is_empty());
}

/// Goal: a function of the application that takes the transaction runs while the claim exists, in a
/// task that another thread may continue.
#[tokio::test]
async fn function_of_the_application_gets_the_transaction() {
    async fn save(tx: &mut Transaction<'_, Postgres>) -> Result<(), sqlx::Error> {
        let mut savepoint = tx.begin().await?;
        let insert = sqlx::query("INSERT INTO work VALUES ('m')");
        insert.execute(&mut *savepoint).await?;
        savepoint.commit().await
    }

    let fixture = Fixture::new().await;
    let pool = fixture.pool.clone();
    let handler = tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        let idem = SqlxTransaction::new(&mut tx);
        let claim = try_claim(&idem, &id("m"), &destination()).await.unwrap();
        let claim = claim.into_new().unwrap();
        save(&mut idem.transaction().unwrap()).await.unwrap();
        claim.record_effects(&[fact()]).await.unwrap();
        commit(tx).await.unwrap();
    });
    handler.await.unwrap();
    assert!(fixture.is_claimed(&id("m")).await);
    assert_eq!(fixture.work(&id("m")).await, 1);
}

/// Goal: two functions of the client on one transaction wait for each other, also after the
/// application has borrowed the transaction and returned it.
#[tokio::test]
async fn concurrent_functions_take_turns() {
    let fixture = Fixture::new().await;
    let to = destination();
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let (a, b) = (id("a"), id("b"));
    drop(idem.transaction().unwrap());
    let (first, second) = tokio::join!(try_claim(&idem, &a, &to), try_claim(&idem, &b, &to));
    assert!(first.unwrap().is_new() && second.unwrap().is_new());
    commit(tx).await.unwrap();
    assert!(fixture.is_claimed(&a).await && fixture.is_claimed(&b).await);
}

/// Goal: a claim whose future is dropped while it waits claims nothing after the rollback, and the
/// connection can be used again.
#[tokio::test]
async fn dropped_claim_claims_nothing() {
    let fixture = Fixture::new().await;
    let mut holder = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut holder, &id("m")).await.unwrap());
    let mut tx = fixture.pool.begin().await.unwrap();
    let pid = pid_of(&mut tx).await;
    let m = id("m");
    tokio::select! {
        claimed = claims(&mut tx, &m) => panic!("the claim waits: {claimed:?}"),
        blocked = fixture.database.until_blocked(pid) => blocked.unwrap(),
    }
    holder.rollback().await.unwrap();
    tx.rollback().await.unwrap();
    assert!(!fixture.is_claimed(&m).await);
    let mut tx = fixture.pool.begin().await.unwrap();
    assert!(claims(&mut tx, &m).await.unwrap());
}

/// Goal: with unprepared statements, two clients share one connection of a PgBouncer that does not
/// know prepared statements. The prepared ones fail there, and work with a newer PgBouncer.
#[tokio::test]
async fn unprepared_statements_work_behind_pgbouncer() {
    let fixture = Fixture::new().await;
    let pooler = fixture.database.small_pooler(1);
    let url = pooler.connection_string_to(fixture.database.name());
    let clients = [
        pool(&url.parse().unwrap()).await,
        pool(&url.parse().unwrap()).await,
    ];
    let is_old = !pooler.keeps_prepared_statements().unwrap();
    for (prepare, expected) in [(false, None), (true, is_old.then_some("42P05"))] {
        let mut state = None;
        for (number, client) in clients.iter().enumerate() {
            let mut tx = client.begin().await.unwrap();
            let idem = SqlxTransaction::new(&mut tx);
            let idem = if prepare { idem } else { idem.unprepared() };
            let id = id(&format!("{prepare} {number}"));
            match try_claim(&idem, &id, &destination()).await {
                Ok(claim) => assert!(claim.is_new()),
                Err(error) => state = error.sqlstate().map(|state| state.code().to_owned()),
            }
            if state.is_none() {
                commit(tx).await.unwrap();
                assert!(fixture.is_claimed(&id).await);
            }
        }
        assert_eq!(state.as_deref(), expected);
    }
}
