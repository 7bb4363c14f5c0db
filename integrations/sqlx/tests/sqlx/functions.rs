//! The functions of the client return with sqlx what they return with `tokio-postgres`.

use std::time::Duration;

use idem_client::deadletters::reject;
use idem_client::inbox::{InboxMessage, next, next_wait, receive, receive_batch};
use idem_client::journal::{CallState, begin_call, calls, fail_call, finish_call};
use idem_client::lease::{Lease, acquire};
use idem_client::preflight::consumer_preflight;
use idem_client::{
    Claim, ClaimOptions, Effect, ErrorKind, MessageId, claim, effects, is_claimed, relay, send,
    try_claim, try_claim_batch, try_record,
};
use idem_sqlx::{SqlxConnection, SqlxTransaction, commit};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio_postgres::Config;
use uuid::Uuid;

use crate::fixtures::{Fixture, destination, fact, id, pool};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn effects_are_read_as_they_were_recorded() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let bytes = vec![0, 255, 10];
    let facts = [
        fact().key("k").message_type("Fact").header("h", "v"),
        Effect::bytes("sqlx.bytes", bytes.clone(), "application/x-test"),
    ];
    let recorded = try_record(&idem, &id, &to, &facts).await;
    assert!(recorded.unwrap().is_new());
    commit(tx).await.unwrap();
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let recorded = effects(&idem, &id, &to).await.unwrap();
    assert_eq!(recorded[1].payload.to_vec(), bytes);
    assert_eq!(recorded[0].headers, Some(json!({"h": "v"})));
    assert_eq!(
        recorded,
        effects(&fixture.observer, &id, &to).await.unwrap()
    );
}

/// Goal: a duplicate reads the effects that the first execution recorded, in its own transaction:
/// the same ids, order and bytes. Invariant: I3.
#[tokio::test]
async fn duplicate_reads_the_recorded_effects() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let bytes = [vec![0, 255, 10], vec![]];
    let facts = bytes
        .clone()
        .map(|bytes| Effect::bytes("sqlx.bytes", bytes, "application/x-test"));
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let claim = try_claim(&idem, &id, &to).await.unwrap();
    let ids = claim.into_new().unwrap().record_effects(&facts).await;
    let ids = ids.unwrap();
    commit(tx).await.unwrap();
    for _ in 0..2 {
        let mut tx = fixture.pool.begin().await.unwrap();
        let idem = SqlxTransaction::new(&mut tx);
        let again = try_claim(&idem, &id, &to).await.unwrap();
        assert!(again.is_duplicate());
        let found = effects(&idem, &id, &to).await.unwrap();
        let found_ids: Vec<_> = found.iter().map(|effect| effect.message_id).collect();
        assert_eq!(found_ids, ids);
        let payloads: Vec<_> = found.iter().map(|effect| effect.payload.to_vec()).collect();
        assert_eq!(payloads, bytes);
        let ordinals: Vec<_> = found.iter().map(|effect| effect.ordinal).collect();
        assert_eq!(ordinals, [0, 1]);
        assert!(found.iter().all(|effect| effect.key.is_none()));
        commit(tx).await.unwrap();
    }
}

#[tokio::test]
async fn claim_has_its_outcomes() {
    let fixture = Fixture::new().await;
    let (id, to) = (id("m"), destination());
    let options = ClaimOptions::default().fingerprint([1, 2]);
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let new = claim(&idem, &id, &to, &options).await.unwrap();
    assert!(new.is_new());
    let mut other = fixture.pool.begin().await.unwrap();
    let other_idem = SqlxTransaction::new(&mut other);
    let busy = claim(&other_idem, &id, &to, &options.clone().no_wait()).await;
    assert!(matches!(busy.unwrap(), Claim::InProgress));
    commit(tx).await.unwrap();
    let again = claim(&other_idem, &id, &to, &options).await.unwrap();
    let Claim::Duplicate {
        handled_at: Some(at),
    } = again
    else {
        panic!("{again:?}");
    };
    assert!(OffsetDateTime::now_utc() - at < MINUTE);
    let differs = ClaimOptions::default().fingerprint([3]);
    let mismatch = claim(&other_idem, &id, &to, &differs).await.unwrap();
    assert!(matches!(mismatch, Claim::Mismatch { .. }), "{mismatch:?}");
    let sent = ClaimOptions::default().sent_at(OffsetDateTime::now_utc());
    let new = claim(&other_idem, &MessageId::text("n").unwrap(), &to, &sent).await;
    assert!(new.unwrap().is_new());
}

#[tokio::test]
async fn batch_claims_texts_and_uuids() {
    let fixture = Fixture::new().await;
    let to = destination();
    let texts = [id("a"), id("b"), id("a")];
    let uuids = [Uuid::new_v4(), Uuid::new_v4()].map(MessageId::from);
    let mut tx = fixture.pool.begin().await.unwrap();
    let idem = SqlxTransaction::new(&mut tx);
    let claims = try_claim_batch(&idem, &texts, &to).await.unwrap();
    let are_new: Vec<_> = claims.iter().map(Claim::is_new).collect();
    assert_eq!(are_new, [true, true, false]);
    let claims = try_claim_batch(&idem, &uuids, &to).await.unwrap();
    assert!(claims.iter().all(Claim::is_new));
    commit(tx).await.unwrap();
    for id in texts.iter().chain(&uuids) {
        assert!(fixture.is_claimed(id).await, "{id}");
    }
}

#[tokio::test]
async fn lease_is_completed_released_and_buried() {
    let fixture = Fixture::new().await;
    let to = destination();
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let retries = "SELECT idem_configure_retries('sqlx.tests', 2, base => '0', jitter => 0)";
    fixture.observer.batch_execute(retries).await.unwrap();

    let Lease::Acquired(held) = acquire(&idem, &id("m"), &to, MINUTE).await.unwrap() else {
        panic!("the message is new");
    };
    let busy = acquire(&idem, &id("m"), &to, MINUTE).await.unwrap();
    assert!(matches!(busy, Lease::InProgress { .. }), "{busy:?}");
    held.extend(&idem, MINUTE).await.unwrap();
    assert_eq!(held.complete(&idem, &[fact()]).await.unwrap().len(), 1);
    assert!(is_claimed(&idem, &id("m"), &to).await.unwrap());

    let Lease::Acquired(held) = acquire(&idem, &id("n"), &to, MINUTE).await.unwrap() else {
        panic!("the message is new");
    };
    held.release(&idem, "no route", false).await.unwrap();
    let Lease::Acquired(held) = acquire(&idem, &id("n"), &to, MINUTE).await.unwrap() else {
        panic!("the message is due");
    };
    assert_eq!((held.attempt(), held.last_error()), (2, Some("no route")));
    let message = InboxMessage::bytes("payload").key("k");
    held.bury(&idem, &message, "no route").await.unwrap();
    let dead = "SELECT payload FROM idem.dead_letters";
    let dead = fixture.observer.query_one(dead, &[]).await.unwrap();
    assert_eq!(dead.get::<_, Vec<u8>>(0), b"payload");
}

#[tokio::test]
async fn inbox_keeps_payloads_and_headers() {
    let fixture = Fixture::new().await;
    let to = destination();
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let message = |n: u8| {
        InboxMessage::bytes(vec![n, 0, 255])
            .key(format!("k{n}"))
            .message_type("T")
            .content_type("application/x-test")
            .header("n", n)
    };
    assert!(receive(&idem, &id("0"), &to, &message(0)).await.unwrap());
    let bare = InboxMessage::json(&json!({"bare": true})).unwrap();
    let batch = [
        (id("1"), message(1)),
        (id("0"), message(0)),
        (id("2"), bare),
    ];
    let received = receive_batch(&idem, &to, &batch).await.unwrap();
    assert_eq!(received, [true, false, true]);
    assert!(
        next_wait(&idem, &to, Duration::from_millis(1))
            .await
            .unwrap()
    );
    let leased = next(&idem, &to, 10, 1 << 20, MINUTE).await.unwrap();
    let found: Vec<_> = leased
        .iter()
        .map(|message| (message.id.to_string(), message.payload.to_vec()))
        .collect();
    assert_eq!(
        found[..2],
        [("0".into(), vec![0, 0, 255]), ("1".into(), vec![1, 0, 255])]
    );
    assert_eq!(leased[1].headers["n"], 1);
    assert_eq!(leased[1].content_type, "application/x-test");
    assert_eq!(leased[2].key, None);
}

#[tokio::test]
async fn external_call_is_recorded() {
    let fixture = Fixture::new().await;
    let (id, to, request) = (id("m"), destination(), json!({"cents": 5}));
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let begun = begin_call(&idem, &id, &to, "charge", Some(&request))
        .await
        .unwrap();
    assert_eq!((begun.state, begun.attempt), (CallState::New, 1));
    fail_call(&idem, &id, &to, "charge", "not sent", true)
        .await
        .unwrap();
    let begun = begin_call(&idem, &id, &to, "charge", Some(&request))
        .await
        .unwrap();
    assert_eq!((begun.state, begun.attempt), (CallState::New, 2));
    let receipt: Value = json!({"receipt": "r"});
    finish_call(&idem, &id, &to, "charge", Some(&receipt))
        .await
        .unwrap();
    let begun = begin_call(&idem, &id, &to, "charge", Some(&request))
        .await
        .unwrap();
    assert_eq!(
        (begun.state, begun.response),
        (CallState::Done, Some(receipt))
    );
    let recorded = calls(&idem, &id, &to).await.unwrap();
    assert_eq!(recorded, calls(&fixture.observer, &id, &to).await.unwrap());
}

#[tokio::test]
async fn relay_reads_and_acknowledges() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let create = "SELECT idem_create_relay('r')";
    fixture.observer.batch_execute(create).await.unwrap();
    let sent = send(&idem, &fact().key("k").header("h", "v"))
        .await
        .unwrap();
    assert_eq!(relay::partitions(&idem, "r").await.unwrap(), 1);
    let batch = relay::next(&idem, "r", 0, 10, MINUTE, 1 << 20)
        .await
        .unwrap()
        .unwrap();
    let [message] = &batch.messages[..] else {
        panic!("{batch:?}");
    };
    assert_eq!(
        (message.message_id, message.key.as_deref()),
        (sent, Some("k"))
    );
    assert_eq!(message.headers["h"], "v");
    let token = relay::extend(&idem, "r", 0, batch.token, MINUTE, None)
        .await
        .unwrap();
    relay::ack(&idem, "r", 0, token).await.unwrap();
    assert!(
        relay::next(&idem, "r", 0, 10, MINUTE, 1 << 20)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn rejected_message_is_stored_as_a_dead_letter() {
    let fixture = Fixture::new().await;
    let to = destination();
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let message = InboxMessage::bytes("p").header("h", json!([1, null]));
    let id = id("m");
    assert!(
        reject(&idem, Some(&id), &to, &message, "broken")
            .await
            .unwrap()
    );
    let dead = "SELECT headers FROM idem.dead_letters WHERE last_error = 'broken'";
    let dead = fixture.observer.query_one(dead, &[]).await.unwrap();
    assert_eq!(dead.get::<_, Value>(0), json!({"h": [1, null]}));
}

/// The check passes for a role that may call the functions, and fails for a role that may not.
#[tokio::test]
async fn database_is_ready_for_a_consumer() {
    let fixture = Fixture::new().await;
    let role = format!("stranger_to_{}", fixture.database.name());
    let create = format!("CREATE ROLE {role} LOGIN");
    fixture.observer.batch_execute(&create).await.unwrap();
    let mut connection = fixture.pool.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    consumer_preflight(&idem).await.unwrap();

    let mut config: Config = fixture.database.direct_url().parse().unwrap();
    let strangers = pool(config.user(&role)).await;
    let mut connection = strangers.acquire().await.unwrap();
    let idem = SqlxConnection::new(&mut connection);
    let error = consumer_preflight(&idem).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotGranted, "{error}");
    assert!(error.to_string().contains(&role), "{error}");
}
