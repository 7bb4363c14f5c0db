//! Tests of id strategies, which determine the id of a claim from the message.

use idem_client::{ErrorKind, MessageId};
use idem_runtime::{
    Error, Idem, Message, Policies, Settlement,
    policy::{IdStrategy, MissingId},
};
use uuid::Uuid;

use crate::fixtures::{Fixture, idem, is_duplicate, is_new, message};

#[tokio::test]
async fn messages_with_equal_business_ids_are_duplicates() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| policy.id = IdStrategy::Payload("/order/id".into()));
    let first = Message::new("orders", r#"{"order": {"id": 4711}}"#).with_message_id("m-1");
    let again =
        Message::new("orders", r#"{"order": {"id": "4711", "n": 2}}"#).with_message_id("m-2");
    let other = Message::new("orders", r#"{"order": {"id": 4712}}"#).with_message_id("m-1");
    assert!(is_new(&fixture.process(&idem, &first).await));
    assert!(is_duplicate(&fixture.process(&idem, &again).await));
    assert!(is_new(&fixture.process(&idem, &other).await));
    assert_eq!(fixture.facts().await, 2);
}

#[tokio::test]
async fn composite_id_keeps_the_borders_of_its_parts() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        let step = IdStrategy::Header("step".into());
        policy.id = IdStrategy::Composite(vec![IdStrategy::CorrelationId, step]);
    });
    let with = |correlation: &str, step: &str| {
        Message::new("tests", "{}")
            .with_correlation_id(correlation)
            .with_header("step", step)
    };
    assert!(is_new(&fixture.process(&idem, &with("a", "b:c")).await));
    assert!(is_new(&fixture.process(&idem, &with("a:b", "c")).await));
    assert!(is_duplicate(
        &fixture.process(&idem, &with("a", "b:c")).await
    ));
}

#[tokio::test]
async fn uuid_of_an_id_function_equals_its_text_form() {
    let fixture = Fixture::new().await;
    let uuid = Uuid::new_v4();
    let policies = Policies::default().default_rule(|policy| {
        policy.id = IdStrategy::function(|message| {
            message
                .key()
                .and_then(|key| Uuid::try_parse(key).ok())
                .map(MessageId::from)
        })
    });
    let idem = Idem::builder().policies(policies).build().unwrap();
    let by_key = Message::new("tests", "{}").with_key(uuid.to_string());
    assert!(is_new(&fixture.process(&idem, &by_key).await));
    assert!(is_duplicate(
        &fixture
            .process(&Idem::new(), &message(&uuid.to_string()))
            .await
    ));
}

#[tokio::test]
async fn missing_id_error_names_destination_and_header() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| policy.id = IdStrategy::Header("x-order".into()));
    let error = fixture.process(&idem, &message("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingId);
    let text = error.to_string();
    assert!(
        text.contains("tests") && text.contains("the header x-order"),
        "{text}"
    );
    assert!(matches!(error.settlement(), Settlement::Reject { .. }));
    assert_eq!(fixture.calls(), 0);
}

#[tokio::test]
async fn unprotected_message_takes_effect_each_time() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| policy.missing_id = MissingId::Unprotected);
    let bare = Message::new("tests", "{}");
    for _ in 0..2 {
        let processed = fixture.process(&idem, &bare).await.unwrap();
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
    }
    assert_eq!((fixture.facts().await, fixture.claims().await), (2, 0));
    assert_eq!(fixture.outbox().await.len(), 2);
    // A message with an id is still protected, so its second delivery is a duplicate.
    assert!(is_new(&fixture.process(&idem, &message("m")).await));
    assert!(is_duplicate(&fixture.process(&idem, &message("m")).await));
}

#[tokio::test]
async fn invalid_id_fails_even_with_missing_id_unprotected() {
    let fixture = Fixture::new().await;
    let idem = idem(|policy| {
        policy.id = IdStrategy::Payload("/id".into());
        policy.missing_id = MissingId::Unprotected;
    });
    for (payload, is_invalid) in [
        (r#"{"id": 1.5}"#.to_owned(), true),
        (format!(r#"{{"id": "{}"}}"#, "x".repeat(1025)), true),
        (r#"{"id": null}"#.to_owned(), false),
    ] {
        let processed = fixture
            .process(&idem, &Message::new("tests", payload.clone()))
            .await;
        assert_eq!(
            matches!(processed, Err(Error::Invalid(_))),
            is_invalid,
            "{payload}: {processed:?}"
        );
    }
    assert_eq!(fixture.facts().await, 1);
}
