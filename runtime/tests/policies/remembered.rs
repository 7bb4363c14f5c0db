//! Tests of duplicates that the process detects without the database.

use std::time::Duration;

use idem_client::{Destination, MessageId, admin::forget};
use idem_fixtures::until;
use idem_runtime::{Idem, Message, Policies};

use crate::ground::{Ground, is_duplicate, is_new, message};

const HOUR: Duration = Duration::from_secs(3600);

fn remembering(policies: &str) -> Idem {
    let policies: Policies = toml::from_str(policies).unwrap();
    Idem::builder()
        .policies(policies)
        .remember_duplicates(100, HOUR)
        .build()
        .unwrap()
}

/// Removes the claim from the database, but not from the memory. Returns whether there was a claim.
async fn free(ground: &Ground, id: &str) -> bool {
    let destination = Destination::new("tests").unwrap();
    forget(&ground.client, &MessageId::text(id).unwrap(), &destination)
        .await
        .unwrap()
}

#[tokio::test]
async fn remembered_duplicate_does_not_reach_the_database() {
    let ground = Ground::new().await;
    let idem = remembering("");
    assert!(is_new(&ground.process(&idem, &message("a")).await));
    // The claim is removed from the database, so only the memory of the process can detect the
    // duplicate.
    assert!(free(&ground, "a").await);
    assert!(is_duplicate(&ground.process(&idem, &message("a")).await));
    ground.pool.close();
    assert!(is_duplicate(&ground.process(&idem, &message("a")).await));
    assert!(ground.process(&idem, &message("b")).await.is_err());
}

#[tokio::test]
async fn duplicate_found_in_the_database_is_remembered() {
    let ground = Ground::new().await;
    let idem = remembering("");
    assert!(is_new(&ground.process(&Idem::new(), &message("a")).await));
    assert!(is_duplicate(&ground.process(&idem, &message("a")).await));
    assert!(free(&ground, "a").await);
    assert!(is_duplicate(&ground.process(&idem, &message("a")).await));
    assert_eq!(ground.facts().await, 1);
}

#[tokio::test]
async fn failed_message_is_not_remembered() {
    let ground = Ground::new().await;
    let idem = remembering("");
    let failed = idem
        .process(&ground.pool, &message("a"), async |_, _: Message| {
            Err("temporary failure".into())
        })
        .await;
    assert!(failed.is_err());
    assert!(is_new(&ground.process(&idem, &message("a")).await));
}

#[tokio::test]
async fn memory_is_skipped_if_the_policy_needs_the_database() {
    for policy in [
        "on-duplicate = 'effects'",
        "fingerprint = true",
        "expire = true",
    ] {
        let ground = Ground::new().await;
        let idem = remembering(&format!("[default]\n{policy}"));
        for _ in 0..2 {
            assert!(
                is_new(&ground.process(&idem, &message("a")).await),
                "{policy}"
            );
            assert!(
                is_duplicate(&ground.process(&idem, &message("a")).await),
                "{policy}"
            );
            assert!(free(&ground, "a").await, "{policy}");
        }
    }
}

#[tokio::test]
async fn duplicates_are_not_remembered_by_default() {
    let ground = Ground::new().await;
    for _ in 0..2 {
        assert!(is_new(&ground.process(&Idem::new(), &message("a")).await));
        assert!(free(&ground, "a").await);
    }
}

#[tokio::test]
async fn remembered_duplicates_expire_and_limits_must_be_positive() {
    let ground = Ground::new().await;
    let idem = Idem::builder()
        .remember_duplicates(100, Duration::from_millis(50))
        .build()
        .unwrap();
    assert!(is_new(&ground.process(&idem, &message("a")).await));
    assert!(free(&ground, "a").await);
    until("the database is asked again", async || {
        is_new(&ground.process(&idem, &message("a")).await)
    })
    .await;

    assert!(
        Idem::builder()
            .remember_duplicates(0, HOUR)
            .build()
            .is_err()
    );
    assert!(
        Idem::builder()
            .remember_duplicates(1, Duration::ZERO)
            .build()
            .is_err()
    );
}
