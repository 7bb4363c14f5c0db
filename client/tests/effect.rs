//! The JSON of an effect, as the server reads it.

use idem_client::{Effect, Error};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

#[test]
fn effect_has_only_the_given_members() {
    let effect = Effect::json("facts", &json!({"n": 1})).unwrap();
    assert_eq!(
        serde_json::to_value(&effect).unwrap(),
        json!({"topic": "facts", "payload": {"n": 1}})
    );
}

#[test]
fn member_names_match_the_server() {
    let effect = Effect::bytes("facts", b"\x00\xff".to_vec(), "application/octet-stream")
        .key("k")
        .message_type("T")
        .header("h", 1)
        .message_id(Uuid::nil())
        .deliver_after(OffsetDateTime::UNIX_EPOCH);
    assert_eq!(
        serde_json::to_value(&effect).unwrap(),
        json!({
            "topic": "facts",
            "payload_base64": "AP8=",
            "content_type": "application/octet-stream",
            "key": "k",
            "type": "T",
            "headers": {"h": 1},
            "message_id": "00000000-0000-0000-0000-000000000000",
            "deliver_after": "1970-01-01T00:00:00Z",
        })
    );
}

#[test]
fn null_payload_is_a_payload() {
    let effect = Effect::json("facts", &()).unwrap();
    assert_eq!(
        serde_json::to_value(&effect).unwrap(),
        json!({"topic": "facts", "payload": null})
    );
}

#[test]
fn payload_without_json_form_is_rejected() {
    let not_json = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert!(matches!(
        Effect::json("facts", &not_json),
        Err(Error::Encode(_))
    ));
}
