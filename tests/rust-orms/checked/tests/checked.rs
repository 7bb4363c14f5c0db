//! The checked queries on the database of `DATABASE_URL`.

use idem_checked::{
    Outcome, claim, effects, inferred_types, record_effects, try_claim, try_claim_uuid,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

async fn connect() -> PgConnection {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is not set");
    PgConnection::connect(&url).await.unwrap()
}

/// Goal: the claim, the work and the effects commit together, and a later transaction reads them.
/// Invariants: I1, I2, I3.
#[tokio::test]
async fn claim_commits_with_the_work() {
    let (id, to) = (Uuid::new_v4().to_string(), "checked");
    let mut connection = connect().await;
    let account = new_account();
    let mut ids = Vec::new();
    for end in ["roll back", "commit", "duplicate"] {
        let mut tx = connection.begin().await.unwrap();
        let (outcome, handled_at) = claim(&mut tx, &id, to, Some(&[1, 2])).await.unwrap();
        assert!(handled_at.is_some());
        if outcome == Outcome::Claimed {
            let insert = sqlx::query!("INSERT INTO account VALUES ($1, 7)", account);
            insert.execute(&mut *tx).await.unwrap();
            let facts = json!([{"topic": "facts", "payload": {"n": 1}, "headers": {"h": "v"}}]);
            ids = record_effects(&mut tx, &id, to, &facts).await.unwrap();
        } else {
            assert_eq!(outcome, Outcome::Duplicate);
        }
        match end {
            "roll back" => tx.rollback().await.unwrap(),
            _ => tx.commit().await.unwrap(),
        }
        let mut observer = connect().await;
        let found = effects(&mut observer, &id, to).await.unwrap();
        assert_eq!(found.len(), usize::from(end != "roll back"), "{end}");
        if let [effect] = &found[..] {
            assert_eq!((effect.message_id, effect.ordinal), (ids[0], 0));
            assert_eq!((&*effect.topic, &effect.key), ("facts", &None));
            assert_eq!(effect.payload, br#"{"n": 1}"#);
            assert_eq!(effect.headers, Some(json!({"h": "v"})));
        }
    }
    let mut tx = connection.begin().await.unwrap();
    let (outcome, _) = claim(&mut tx, &id, to, Some(&[3])).await.unwrap();
    assert_eq!(outcome, Outcome::Mismatch);
}

fn new_account() -> i32 {
    i32::from_ne_bytes(Uuid::new_v4().as_bytes()[..4].try_into().unwrap())
}

#[tokio::test]
async fn text_and_uuid_are_claimed() {
    let (uuid, to) = (Uuid::new_v4(), "checked");
    let mut connection = connect().await;
    let mut tx = connection.begin().await.unwrap();
    assert!(
        try_claim(&mut tx, &Uuid::new_v4().to_string(), to)
            .await
            .unwrap()
    );
    assert!(try_claim_uuid(&mut tx, uuid, to).await.unwrap());
    // The text of a uuid is the same id.
    assert!(!try_claim(&mut tx, &uuid.to_string(), to).await.unwrap());
    inferred_types(&mut tx, &Uuid::new_v4().to_string(), to)
        .await
        .unwrap();
}
