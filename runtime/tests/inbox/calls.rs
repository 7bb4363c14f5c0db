//! Tests of the functions of the durable inbox.

use std::time::Duration;

use idem_client::{
    Claim, ErrorKind, MessageId, begin_and_claim,
    inbox::{InboxMessage, next, next_wait, receive, receive_batch},
};
use idem_runtime::Message;
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::fixtures::{Fixture, id_of};

const LEASE: Duration = Duration::from_secs(30);
/// The limit, in bytes, that these tests pass to `next`.
const MAX_BYTES: i64 = 16 * 1024 * 1024;

#[tokio::test]
async fn next_returns_all_properties_of_the_received_message() {
    let fixture = Fixture::new().await;
    let letter = InboxMessage::json(&json!({"order": 7}))
        .unwrap()
        .key("customer-7")
        .message_type("OrderPlaced")
        .header("schema", 2)
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        );
    assert!(
        receive(&fixture.client, &id_of("m-1"), &fixture.to, &letter)
            .await
            .unwrap()
    );
    let [received] = &next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
        .await
        .unwrap()[..]
    else {
        panic!("expected one message");
    };
    assert_eq!(
        (received.id.to_string().as_str(), received.attempt),
        ("m-1", 1)
    );
    let message = Message::of_inbox(received, &fixture.to);
    assert_eq!(
        message.json::<serde_json::Value>().unwrap(),
        json!({"order": 7})
    );
    assert_eq!(message.content_type(), Some("application/json"));
    assert_eq!(
        (message.key(), message.message_type()),
        (Some("customer-7"), Some("OrderPlaced"))
    );
    assert_eq!(
        (message.header("schema"), message.deliveries()),
        (Some("2"), Some(1))
    );
    assert!(
        message
            .header("traceparent")
            .is_some_and(|parent| parent.starts_with("00-0af"))
    );
    assert!(
        next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
            .await
            .unwrap()
            .is_empty(),
        "the message is leased"
    );
}

#[tokio::test]
async fn receive_finds_pending_and_claimed_messages() {
    let mut fixture = Fixture::new().await;
    let letter = InboxMessage::bytes(&b"\x00\xff"[..]).content_type("application/octet-stream");
    let (text, uuid) = (id_of("m-1"), MessageId::from(Uuid::new_v4()));
    for id in [&text, &uuid] {
        assert!(
            receive(&fixture.client, id, &fixture.to, &letter)
                .await
                .unwrap()
        );
        assert!(
            !receive(&fixture.client, id, &fixture.to, &letter)
                .await
                .unwrap()
        );
    }
    let Claim::New(claimed) = begin_and_claim(&mut fixture.client, &text, &fixture.to)
        .await
        .unwrap()
    else {
        panic!("expected a new claim");
    };
    claimed.commit().await.unwrap();
    assert!(
        !receive(&fixture.client, &text, &fixture.to, &letter)
            .await
            .unwrap(),
        "the message is claimed"
    );
    let received = next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
        .await
        .unwrap();
    assert_eq!(
        received
            .iter()
            .map(|received| received.id.clone())
            .collect::<Vec<_>>(),
        [id_of(&uuid.to_string())]
    );
    assert_eq!(&*received[0].payload, b"\x00\xff");
}

#[tokio::test]
async fn receive_batch_keeps_order_and_returns_by_position() {
    let fixture = Fixture::new().await;
    fixture.receive("b", "").await;
    let letters: Vec<_> = ["c", "b", "a", "c"]
        .into_iter()
        .map(|id| (id_of(id), InboxMessage::json(&id).unwrap().header("id", id)))
        .collect();
    let are_new = receive_batch(&fixture.client, &fixture.to, &letters)
        .await
        .unwrap();
    assert_eq!(are_new, [true, false, true, false]);
    let received = next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
        .await
        .unwrap();
    let ids: Vec<_> = received
        .iter()
        .map(|received| received.id.to_string())
        .collect();
    assert_eq!(ids, ["b", "c", "a"]);
    assert!(
        receive_batch(&fixture.client, &fixture.to, &[])
            .await
            .unwrap()
            .is_empty()
    );
    let wrong = vec![
        (id_of("d"), InboxMessage::bytes("")),
        (id_of("e"), InboxMessage::bytes("").key("")),
    ];
    let error = receive_batch(&fixture.client, &fixture.to, &wrong)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(
        fixture.count("id = 'd'").await,
        0,
        "the batch is received completely or not at all"
    );
}

#[tokio::test]
async fn delayed_message_is_not_returned_before_it_is_due() {
    let fixture = Fixture::new().await;
    let soon = OffsetDateTime::now_utc() + Duration::from_secs(2);
    let letter = InboxMessage::json(&1).unwrap().deliver_after(soon);
    assert!(
        receive(&fixture.client, &id_of("later"), &fixture.to, &letter)
            .await
            .unwrap()
    );
    fixture.receive("now", "").await;
    let received = next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
        .await
        .unwrap();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].id, id_of("now"));
    idem_testkit::until("the delayed message is returned", async || {
        next_wait(&fixture.client, &fixture.to, Duration::from_secs(10))
            .await
            .unwrap();
        let received = next(&fixture.client, &fixture.to, 10, MAX_BYTES, LEASE)
            .await
            .unwrap();
        let is_there = received
            .iter()
            .any(|received| received.id == id_of("later"));
        assert!(
            !is_there || OffsetDateTime::now_utc() >= soon,
            "the message was returned before it was due"
        );
        is_there
    })
    .await;
}
