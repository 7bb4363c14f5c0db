//! Tests of the client functions on a real server.

use futures_util::{FutureExt, future::join_all};
use idem_client::{
    Claim, ClaimOptions, Destination, Effect, Error, ErrorKind, MessageId, begin_and_claim, claim,
    commit, effects, is_claimed, send, try_claim, try_claim_batch, try_record,
};
use idem_testkit::Database;
use serde_json::json;
use time::{Duration, OffsetDateTime};
use tokio_postgres::{Client, NoTls, error::SqlState};
use uuid::Uuid;

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn new_id() -> MessageId {
    Uuid::new_v4().into()
}

fn destination() -> Destination {
    Destination::new("client.tests").unwrap()
}

fn fact(n: u32) -> Effect {
    Effect::json("client.facts", &json!({ "n": n })).unwrap()
}

#[tokio::test]
async fn duplicate_reads_the_recorded_effects() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let (id, to) = (new_id(), destination());

    let bytes = vec![0, 255, 10];
    let tx = client.transaction().await.unwrap();
    let won = try_claim(&tx, &id, &to)
        .await
        .unwrap()
        .into_new()
        .expect("an id that is not claimed");
    let ids = won
        .record_effects(&[
            fact(1).key("k").message_type("Fact").header("h", "v"),
            Effect::bytes("client.bytes", bytes.clone(), "application/x-test"),
        ])
        .await
        .unwrap();
    commit(tx).await.unwrap();

    let tx = client.transaction().await.unwrap();
    assert!(try_claim(&tx, &id, &to).await.unwrap().is_duplicate());
    let recorded = effects(&tx, &id, &to).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(recorded.iter().map(|effect| effect.message_id).eq(ids));
    assert!(recorded[0].ordinal < recorded[1].ordinal);
    let [json, binary] = &recorded[..] else {
        panic!("expected two effects: {recorded:?}");
    };
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&json.payload).unwrap(),
        json!({"n": 1})
    );
    assert_eq!(json.topic, "client.facts");
    assert_eq!(json.key.as_deref(), Some("k"));
    assert_eq!(json.message_type.as_deref(), Some("Fact"));
    assert_eq!(json.headers, Some(json!({"h": "v"})));
    assert_eq!(json.content_type.as_deref(), Some("application/json"));
    assert_eq!(binary.payload.to_vec(), bytes);
    assert_eq!(binary.content_type.as_deref(), Some("application/x-test"));

    // A second connection reads the same effects.
    let other = connect(&server.url()).await;
    assert_eq!(effects(&other, &id, &to).await.unwrap(), recorded);
}

#[tokio::test]
async fn claim_reports_in_progress_duplicate_and_mismatch() {
    let server = Database::create();
    let (mut first, mut second) = (connect(&server.url()).await, connect(&server.url()).await);
    let (id, to) = (new_id(), destination());
    let options = ClaimOptions::default().fingerprint(*b"one");

    let tx = first.transaction().await.unwrap();
    let outcome = claim(&tx, &id, &to, &options).await.unwrap();
    assert!(matches!(outcome, Claim::New(_)), "{outcome:?}");
    {
        let other = second.transaction().await.unwrap();
        let outcome = claim(&other, &id, &to, &options.clone().no_wait()).await;
        assert!(matches!(outcome, Ok(Claim::InProgress)), "{outcome:?}");
    }
    commit(tx).await.unwrap();

    let tx = second.transaction().await.unwrap();
    let outcome = claim(&tx, &id, &to, &options).await.unwrap();
    let Claim::Duplicate { handled_at } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(handled_at.is_some());
    let other = ClaimOptions::default().fingerprint(*b"two");
    let outcome = claim(&tx, &id, &to, &other).await.unwrap();
    assert!(matches!(outcome, Claim::Mismatch { .. }), "{outcome:?}");
}

/// Goal: for a message that was sent before the oldest retained claim, `claim` returns `Expired`
/// and not `New`.
#[tokio::test]
async fn message_older_than_the_retained_claims_is_expired() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let to = Destination::new("client.forgets-soon").unwrap();
    client
        .batch_execute(
            "SELECT idem_set_retention('short', '200 milliseconds');
             SELECT idem_configure('client.forgets-soon', '200 milliseconds');",
        )
        .await
        .unwrap();
    let sent = OffsetDateTime::now_utc();
    let sent_long_ago = ClaimOptions::default().sent_at(sent);
    let deadline = sent + Duration::seconds(30);
    // The ring retains all claims until its first rotation, so the first results are `New`.
    loop {
        let tx = client.transaction().await.unwrap();
        let outcome = claim(&tx, &new_id(), &to, &sent_long_ago).await.unwrap();
        if matches!(outcome, Claim::Expired) {
            return;
        }
        assert!(matches!(outcome, Claim::New(_)), "{outcome:?}");
        assert!(
            OffsetDateTime::now_utc() < deadline,
            "the ring does not rotate"
        );
        tx.rollback().await.unwrap();
        client.batch_execute("CALL idem_maintain()").await.unwrap();
    }
}

#[tokio::test]
async fn claim_batch_returns_results_by_position() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let to = destination();
    let known = new_id();
    let tx = client.transaction().await.unwrap();
    assert!(try_claim(&tx, &known, &to).await.unwrap().is_new());
    commit(tx).await.unwrap();

    let uuid = Uuid::new_v4();
    let text = MessageId::text(format!("text-{uuid}")).unwrap();
    // The text form of a UUID is the same id as the UUID, so the last id is a duplicate of the
    // first id.
    let same = MessageId::text(uuid.to_string()).unwrap();
    let ids = [uuid.into(), known, text, same];
    let tx = client.transaction().await.unwrap();
    let claims = try_claim_batch(&tx, &ids, &to).await.unwrap();
    let won: Vec<bool> = claims.iter().map(Claim::is_new).collect();
    assert_eq!(won, [true, false, true, false]);
    for claim in claims.into_iter().filter_map(Claim::into_new) {
        claim.record_effects(&[fact(7)]).await.unwrap();
    }
    commit(tx).await.unwrap();
    assert_eq!(effects(&client, &ids[2], &to).await.unwrap().len(), 1);
    assert_eq!(effects(&client, &ids[3], &to).await.unwrap().len(), 1);
}

/// Goal: `try_record` claims a message at the end of its processing. If another transaction has
/// already recorded the message, `try_record` reports a duplicate.
#[tokio::test]
async fn second_try_record_is_a_duplicate_and_records_nothing() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let (id, to) = (new_id(), destination());
    let tx = client.transaction().await.unwrap();
    assert!(
        try_record(&tx, &id, &to, &[fact(1)])
            .await
            .unwrap()
            .is_new()
    );
    commit(tx).await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert!(
        try_record(&tx, &id, &to, &[fact(2)])
            .await
            .unwrap()
            .is_duplicate()
    );
    tx.rollback().await.unwrap();
    let recorded = effects(&client, &id, &to).await.unwrap();
    assert_eq!(recorded.len(), 1);
    assert!(String::from_utf8_lossy(&recorded[0].payload).contains('1'));
}

#[tokio::test]
async fn send_uses_the_given_message_id() {
    let server = Database::create();
    let client = connect(&server.url()).await;
    let id = Uuid::new_v4();
    let all = fact(1)
        .key("k")
        .message_type("T")
        .header("h", 1)
        .message_id(id);
    assert_eq!(send(&client, &all).await.unwrap(), id);
    let bytes = Effect::bytes("client.bytes", vec![1], "application/x-test");
    assert_ne!(send(&client, &bytes).await.unwrap(), id);
    let later = fact(1).deliver_after(OffsetDateTime::now_utc());
    let refused = send(&client, &later).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}

/// Goal: `begin_and_claim` sends BEGIN together with the claim, and `record_and_commit` sends the
/// effects together with COMMIT.
#[tokio::test]
async fn pipelined_begin_and_commit_open_and_close_the_transaction() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let (id, to) = (new_id(), destination());
    let claimed = begin_and_claim(&mut client, &id, &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    assert!(is_in_transaction(&claimed).await);
    let ids = claimed
        .record_and_commit(&[fact(1), fact(2)])
        .await
        .unwrap();
    assert!(!is_in_transaction(&client).await);
    let recorded = effects(&client, &id, &to).await.unwrap();
    assert!(recorded.iter().map(|effect| effect.message_id).eq(ids));

    assert!(
        begin_and_claim(&mut client, &id, &to)
            .await
            .unwrap()
            .is_duplicate()
    );
    assert!(!is_in_transaction(&client).await);

    let empty = new_id();
    let claimed = begin_and_claim(&mut client, &empty, &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    claimed.commit().await.unwrap();
    assert!(is_claimed(&client, &empty, &to).await.unwrap());
}

#[tokio::test]
async fn dropped_or_rolled_back_transaction_leaves_no_claim() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let (id, to) = (new_id(), destination());
    drop(
        begin_and_claim(&mut client, &id, &to)
            .await
            .unwrap()
            .into_new()
            .unwrap(),
    );
    assert!(!is_claimed(&client, &id, &to).await.unwrap());
    let claimed = begin_and_claim(&mut client, &id, &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    claimed.rollback().await.unwrap();
    assert!(!is_claimed(&client, &id, &to).await.unwrap());

    // Drop the future while BEGIN and the claim are in flight. Both were sent, so the client also
    // sends a ROLLBACK.
    assert!(
        begin_and_claim(&mut client, &id, &to)
            .now_or_never()
            .is_none()
    );
    assert!(!is_in_transaction(&client).await);
    assert!(!is_claimed(&client, &id, &to).await.unwrap());
}

#[tokio::test]
async fn commit_after_an_ignored_failed_statement_is_an_error() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let (id, to) = (new_id(), destination());
    let claimed = begin_and_claim(&mut client, &id, &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    assert!(claimed.batch_execute("SELECT 1/0").await.is_err());
    let error = claimed.commit().await.unwrap_err();
    assert_eq!(error.sqlstate(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
    assert!(!is_in_transaction(&client).await);
    assert!(!is_claimed(&client, &id, &to).await.unwrap());
}

/// I2: the server rejects a COMMIT inside of a claimed transaction. A transaction that its caller
/// has ended, or whose role or search_path its caller has changed, does not report success, and
/// leaves no claim.
#[tokio::test]
async fn i2_claimed_transaction_that_was_ended_leaves_no_claim() {
    let server = Database::create();
    let mut client = connect(&server.url()).await;
    let to = destination();
    client
        .batch_execute("CREATE ROLE i2_claimed_tenant")
        .await
        .unwrap();
    for (end, state) in [
        ("COMMIT", "25P02"),
        ("COMMIT AND CHAIN", "25P02"),
        ("ROLLBACK", "25P01"),
        ("ROLLBACK; BEGIN", "25P01"),
        ("SET LOCAL ROLE i2_claimed_tenant", "42501"),
        ("SET LOCAL search_path = pg_catalog", "42883"),
    ] {
        for effects in [&[][..], &[fact(1)], &[Effect::json("", &1).unwrap()]] {
            let id = new_id();
            let claimed = begin_and_claim(&mut client, &id, &to)
                .await
                .unwrap()
                .into_new()
                .unwrap();
            let ended = claimed.batch_execute(end).await;
            let is_rejected = end.starts_with("COMMIT");
            let rejected = SqlState::INVALID_TRANSACTION_TERMINATION;
            let error = ended.as_ref().err().and_then(|error| error.code());
            assert_eq!(error, is_rejected.then_some(&rejected), "{end}");
            let error = claimed.record_and_commit(effects).await.unwrap_err();
            // Without effects, no function is called after the change.
            let state = match end.starts_with("SET") && effects.is_empty() {
                true => "25000",
                false => state,
            };
            match (&error, state) {
                (Error::TransactionEnded, "25P01")
                | (Error::SettingsChanged(_), "25000" | "42501" | "42883") => {
                    assert_eq!(error.kind(), ErrorKind::Terminal);
                }
                (Error::Database(_), "25P02") => {}
                _ => panic!("{end}: {error:?}"),
            }
            let reported = error.sqlstate().map_or("25P01", SqlState::code);
            assert_eq!(reported, state, "{end}: {error:?}");
            assert!(!is_in_transaction(&client).await, "{end}");
            assert!(!is_claimed(&client, &id, &to).await.unwrap(), "{end}");
        }
    }
}

#[tokio::test]
async fn lost_commit_is_ambiguous_and_failed_commit_is_not() {
    let server = Database::create();
    let (mut client, to) = (connect(&server.url()).await, destination());
    client
        .batch_execute(
            "CREATE TABLE at_commit (what text);
             CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF NEW.what = 'die' THEN
                     PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60);
                 END IF;
                 RAISE EXCEPTION 'refused' USING ERRCODE = '23514';
             END $$;
             CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON at_commit
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit();",
        )
        .await
        .unwrap();

    let insert_that_fails = "INSERT INTO at_commit VALUES ('refuse')";
    let tx = client.transaction().await.unwrap();
    tx.batch_execute(insert_that_fails).await.unwrap();
    let error = commit(tx).await.unwrap_err();
    assert!(matches!(error, Error::Database(_)), "{error:?}");
    assert!(!error.is_retryable());
    assert_eq!(error.sqlstate(), Some(&SqlState::CHECK_VIOLATION));
    let claimed = begin_and_claim(&mut client, &new_id(), &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    claimed.batch_execute(insert_that_fails).await.unwrap();
    let error = claimed.record_and_commit(&[fact(1)]).await.unwrap_err();
    assert!(matches!(error, Error::Database(_)), "{error:?}");

    let insert_that_terminates = "INSERT INTO at_commit VALUES ('die')";
    let tx = client.transaction().await.unwrap();
    tx.batch_execute(insert_that_terminates).await.unwrap();
    let error = commit(tx).await.unwrap_err();
    assert!(matches!(error, Error::AmbiguousCommit(_)), "{error:?}");
    assert!(error.is_retryable());
    let mut client = connect(&server.url()).await;
    let claimed = begin_and_claim(&mut client, &new_id(), &to)
        .await
        .unwrap()
        .into_new()
        .unwrap();
    claimed.batch_execute(insert_that_terminates).await.unwrap();
    let error = claimed.record_and_commit(&[fact(1)]).await.unwrap_err();
    assert!(matches!(error, Error::AmbiguousCommit(_)), "{error:?}");
}

#[tokio::test]
async fn error_kinds_identify_the_cause() {
    let server = Database::create();
    let (mut client, to) = (connect(&server.url()).await, destination());

    let read_only = client
        .build_transaction()
        .read_only(true)
        .start()
        .await
        .unwrap();
    let error = try_claim(&read_only, &new_id(), &to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    drop(read_only);

    // The rollback to the savepoint removes the claim, so effects cannot be recorded. With
    // `Claimed`, the compiler rejects this use. Here, the server rejects it.
    let mut tx = client.transaction().await.unwrap();
    let inner = tx.transaction().await.unwrap();
    assert!(try_claim(&inner, &new_id(), &to).await.unwrap().is_new());
    inner.rollback().await.unwrap();
    let wrong = tx
        .query_typed(
            "SELECT idem_record_effects('never-claimed', 'client.tests', '[]')",
            &[],
        )
        .await
        .map_err(Error::from)
        .unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::NotClaimed);
    drop(tx);

    let mut without = connect(&server.url_of("postgres")).await;
    let tx = without.transaction().await.unwrap();
    let error = try_claim(&tx, &new_id(), &to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInstalled);
    drop(tx);

    let tx = client.transaction().await.unwrap();
    let backend: i32 = tx
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let terminator = connect(&server.url()).await;
    terminator
        .execute("SELECT pg_terminate_backend($1, 5000)", &[&backend])
        .await
        .unwrap();
    let error = try_claim(&tx, &new_id(), &to).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    assert!(error.is_retryable());
}

#[tokio::test]
async fn concurrent_claims_have_one_winner() {
    let server = Database::create();
    let (id, to) = (new_id(), destination());
    let attempts = (0..8).map(|_| async {
        let mut client = connect(&server.url()).await;
        let tx = client.transaction().await.unwrap();
        let won = try_claim(&tx, &id, &to).await.unwrap().is_new();
        commit(tx).await.unwrap();
        won
    });
    let won = join_all(attempts).await;
    assert_eq!(won.iter().filter(|won| **won).count(), 1);
}

/// Returns whether the session is in a transaction block. Two statements have the same start time
/// only if they are in one block.
async fn is_in_transaction(client: &Client) -> bool {
    let mut starts = Vec::new();
    for _ in 0..2 {
        let row = client.query_one("SELECT now()", &[]).await.unwrap();
        starts.push(row.get::<_, OffsetDateTime>(0));
    }
    starts[0] == starts[1]
}
