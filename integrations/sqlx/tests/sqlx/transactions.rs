//! Claims in transactions of sqlx.

use idem_client::{Claim, Error, effects, try_claim};
use idem_sqlx::{SqlxTransaction, commit};
use uuid::Uuid;

use crate::fixtures::{Fixture, claims, destination, fact, id};

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
                .execute(&mut *idem.connection().await)
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

/// Goal: a dropped transaction claims nothing, also if a claim was dropped before it ended.
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

#[tokio::test]
async fn borrowed_connection_fails_instead_of_waiting() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let borrowed = idem.connection().await;
    let error = try_claim(&idem, &id, &to).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("is borrowed")),
        "{error:?}"
    );
    drop(borrowed);
    assert!(try_claim(&idem, &id, &to).await.unwrap().is_new());
}
