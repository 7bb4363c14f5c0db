//! Where the id comes from, down to the claim.

use idem_client::{Error, ErrorKind, IdStrategy, Idem, Message, MessageId, Policies, Settlement};
use uuid::Uuid;

use crate::ground::{Ground, idem, is_duplicate, is_new, message};

#[tokio::test]
async fn a_business_id_makes_a_duplicate_of_what_was_sent_twice() {
    let ground = Ground::new().await;
    let idem = idem("[destinations.orders]\nid = { payload = '/order/id' }");
    let first = Message::new("orders", r#"{"order": {"id": 4711}}"#).with_message_id("m-1");
    let again =
        Message::new("orders", r#"{"order": {"id": "4711", "n": 2}}"#).with_message_id("m-2");
    let other = Message::new("orders", r#"{"order": {"id": 4712}}"#).with_message_id("m-1");
    assert!(is_new(&ground.process(&idem, &first).await));
    assert!(is_duplicate(&ground.process(&idem, &again).await));
    assert!(is_new(&ground.process(&idem, &other).await));
    assert_eq!(ground.facts().await, 2);
}

#[tokio::test]
async fn parts_of_a_composite_that_are_shifted_are_another_message() {
    let ground = Ground::new().await;
    let idem = idem("[default]\nid = { composite = ['correlation-id', { header = 'step' }] }");
    let with = |correlation: &str, step: &str| {
        Message::new("tests", "{}")
            .with_correlation_id(correlation)
            .with_header("step", step)
    };
    assert!(is_new(&ground.process(&idem, &with("a", "b:c")).await));
    assert!(is_new(&ground.process(&idem, &with("a:b", "c")).await));
    assert!(is_duplicate(
        &ground.process(&idem, &with("a", "b:c")).await
    ));
}

#[tokio::test]
async fn a_function_may_answer_the_uuid_that_another_writes_as_text() {
    let ground = Ground::new().await;
    let uuid = Uuid::new_v4();
    let policies = Policies::default().default_rule(|rule| {
        rule.id(IdStrategy::function(|message| {
            message
                .key()
                .and_then(|key| Uuid::try_parse(key).ok())
                .map(MessageId::from)
        }))
    });
    let idem = Idem::builder().policies(policies).build().unwrap();
    let by_key = Message::new("tests", "{}").with_key(uuid.to_string());
    assert!(is_new(&ground.process(&idem, &by_key).await));
    assert!(is_duplicate(
        &ground
            .process(&Idem::new(), &message(&uuid.to_string()))
            .await
    ));
}

#[tokio::test]
async fn a_message_without_an_id_is_refused_by_name() {
    let ground = Ground::new().await;
    let idem = idem("[default]\nid = { header = 'x-order' }");
    let error = ground.process(&idem, &message("m")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingId);
    let text = error.to_string();
    assert!(
        text.contains("tests") && text.contains("the header x-order"),
        "{text}"
    );
    assert!(matches!(error.settlement(), Settlement::Reject { .. }));
    assert_eq!(ground.calls(), 0);
}

#[tokio::test]
async fn a_message_without_an_id_may_be_let_pass_and_takes_effect_each_time() {
    let ground = Ground::new().await;
    let idem = idem("[default]\nmissing-id = 'unprotected'");
    let bare = Message::new("tests", "{}");
    for _ in 0..2 {
        let processed = ground.process(&idem, &bare).await.unwrap();
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
    }
    assert_eq!((ground.facts().await, ground.claims().await), (2, 0));
    assert_eq!(ground.outbox().await.len(), 2);
    // With an id it is protected as ever.
    assert!(is_new(&ground.process(&idem, &message("m")).await));
    assert!(is_duplicate(&ground.process(&idem, &message("m")).await));
}

#[tokio::test]
async fn an_id_that_cannot_be_one_is_refused_and_not_let_pass() {
    let ground = Ground::new().await;
    let idem = idem("[default]\nid = { payload = '/id' }\nmissing-id = 'unprotected'");
    for (payload, is_refused) in [
        (r#"{"id": 1.5}"#.to_owned(), true),
        (format!(r#"{{"id": "{}"}}"#, "x".repeat(1025)), true),
        (r#"{"id": null}"#.to_owned(), false),
    ] {
        let answer = ground
            .process(&idem, &Message::new("tests", payload.clone()))
            .await;
        assert_eq!(
            matches!(answer, Err(Error::Invalid(_))),
            is_refused,
            "{payload}: {answer:?}"
        );
    }
    assert_eq!(ground.facts().await, 1);
}
