//! Tests of duplicates that the process detects without the database.

use std::time::Duration;

use idem_client::{Destination, MessageId, admin::forget};
use idem_runtime::{
    Idem, Message, Policies,
    policy::{OnDuplicate, Rule},
};
use idem_testkit::until;

use crate::fixtures::{Fixture, is_duplicate, is_new, message};

const HOUR: Duration = Duration::from_secs(3600);

fn remembering(rule: impl FnOnce(Rule) -> Rule) -> Idem {
    Idem::builder()
        .policies(Policies::default().default_rule(rule))
        .remember_duplicates(100, HOUR)
        .build()
        .unwrap()
}

/// Removes the claim from the database, but not from the memory. Returns whether there was a claim.
async fn free(fixture: &Fixture, id: &str) -> bool {
    let destination = Destination::new("tests").unwrap();
    forget(&fixture.client, &MessageId::text(id).unwrap(), &destination)
        .await
        .unwrap()
}

#[tokio::test]
async fn remembered_duplicate_does_not_reach_the_database() {
    let fixture = Fixture::new().await;
    let idem = remembering(|rule| rule);
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    // The claim is removed from the database, so only the memory of the process can detect the
    // duplicate.
    assert!(free(&fixture, "a").await);
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    fixture.pool.close();
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert!(fixture.process(&idem, &message("b")).await.is_err());
}

#[tokio::test]
async fn duplicate_found_in_the_database_is_remembered() {
    let fixture = Fixture::new().await;
    let idem = remembering(|rule| rule);
    assert!(is_new(&fixture.process(&Idem::new(), &message("a")).await));
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert!(free(&fixture, "a").await);
    assert!(is_duplicate(&fixture.process(&idem, &message("a")).await));
    assert_eq!(fixture.facts().await, 1);
}

#[tokio::test]
async fn failed_message_is_not_remembered() {
    let fixture = Fixture::new().await;
    let idem = remembering(|rule| rule);
    let failed = idem
        .process(&fixture.pool, &message("a"), async |_, _: Message| {
            Err("temporary failure".into())
        })
        .await;
    assert!(failed.is_err());
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
}

#[tokio::test]
async fn memory_is_skipped_if_the_policy_needs_the_database() {
    let rules: [fn(Rule) -> Rule; 3] = [
        |rule| rule.on_duplicate(OnDuplicate::Effects),
        |rule| rule.fingerprint(true),
        |rule| rule.expire(true),
    ];
    for (number, rule) in rules.into_iter().enumerate() {
        let fixture = Fixture::new().await;
        let idem = remembering(rule);
        for _ in 0..2 {
            assert!(
                is_new(&fixture.process(&idem, &message("a")).await),
                "rule {number}"
            );
            assert!(
                is_duplicate(&fixture.process(&idem, &message("a")).await),
                "rule {number}"
            );
            assert!(free(&fixture, "a").await, "rule {number}");
        }
    }
}

#[tokio::test]
async fn duplicates_are_not_remembered_by_default() {
    let fixture = Fixture::new().await;
    for _ in 0..2 {
        assert!(is_new(&fixture.process(&Idem::new(), &message("a")).await));
        assert!(free(&fixture, "a").await);
    }
}

#[tokio::test]
async fn remembered_duplicates_expire_and_limits_must_be_positive() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder()
        .remember_duplicates(100, Duration::from_millis(50))
        .build()
        .unwrap();
    assert!(is_new(&fixture.process(&idem, &message("a")).await));
    assert!(free(&fixture, "a").await);
    until("the database is asked again", async || {
        is_new(&fixture.process(&idem, &message("a")).await)
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
