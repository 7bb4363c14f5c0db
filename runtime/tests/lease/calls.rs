//! Tests of the lease functions on a connection of the caller.

use std::time::Duration;

use idem_client::{ErrorKind, inbox::InboxMessage, lease::Lease};

use crate::fixtures::{Fixture, LONG, SHORT, fact, message};

const BRIEF: Duration = Duration::from_millis(1);

#[tokio::test]
async fn leased_is_in_progress_and_completed_is_duplicate() {
    let fixture = Fixture::new().await;
    let message = message();
    let held = fixture.acquired(&message, LONG).await;
    assert_eq!(
        (held.attempt(), held.last_error(), held.lease()),
        (1, None, LONG)
    );
    match fixture.acquire(&message, LONG).await {
        Lease::InProgress { retry_after } => assert!(
            retry_after > LONG / 2 && retry_after <= LONG,
            "{retry_after:?}"
        ),
        other => panic!("{other:?}"),
    }

    // The completion commits together with the other writes of the transaction, so a rollback
    // undoes it.
    let mut client = fixture.database.client().await;
    let tx = client.transaction().await.unwrap();
    tx.batch_execute("INSERT INTO work VALUES ('a')")
        .await
        .unwrap();
    assert_eq!(held.complete(&tx, &[fact()]).await.unwrap().len(), 1);
    tx.rollback().await.unwrap();
    fixture.assert_undone(&message).await;

    let tx = client.transaction().await.unwrap();
    tx.batch_execute("INSERT INTO work VALUES ('a')")
        .await
        .unwrap();
    let ids = held.complete(&tx, &[fact()]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fixture.effects(&message).await[0].message_id, ids[0]);
    assert_eq!(fixture.count("SELECT count(*) FROM work").await, 1);
    assert!(matches!(
        fixture.acquire(&message, LONG).await,
        Lease::Duplicate
    ));
    assert_eq!(
        kind(held.complete(&client, &[fact()]).await),
        Some(ErrorKind::NotClaimed)
    );
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn lost_lease_permits_no_write() {
    let fixture = Fixture::new().await;
    let message = message();
    let lost = fixture.acquired(&message, BRIEF).await;
    let held = fixture.acquired_next(&message).await;
    assert_eq!(held.attempt(), 2);
    assert!(
        held.last_error()
            .is_some_and(|error| error.contains("lease expired")),
        "{held:?}"
    );

    let client = &fixture.observer;
    let errors = [
        kind(lost.extend(client, LONG).await),
        kind(lost.complete(client, &[fact()]).await),
        kind(lost.release(client, "late", false).await),
        kind(lost.give_back(client).await),
        kind(
            lost.bury(client, &InboxMessage::bytes("late"), "late")
                .await,
        ),
    ];
    assert_eq!(errors, [Some(ErrorKind::NotClaimed); 5]);
    fixture.assert_undone(&message).await;
    held.complete(client, &[fact()]).await.unwrap();
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn extended_lease_expires_later() {
    let fixture = Fixture::new().await;
    let message = message();
    let held = fixture.acquired(&message, SHORT).await;
    held.extend(&fixture.observer, LONG).await.unwrap();
    let left = fixture.left(&message).await.unwrap();
    assert!(left > SHORT.as_secs_f64(), "{left}");
}

#[tokio::test]
async fn failure_counts_as_an_attempt_and_give_back_does_not() {
    let fixture = Fixture::new().await;
    fixture.attempts(2).await;
    let message = message();
    let held = fixture.acquired(&message, LONG).await;
    held.give_back(&fixture.observer).await.unwrap();
    let held = fixture.acquired(&message, LONG).await;
    assert_eq!((held.attempt(), held.last_error()), (1, None));
    assert_eq!(
        held.release(&fixture.observer, "out\0 of stock", false)
            .await
            .unwrap(),
        Some(Duration::ZERO)
    );
    let held = fixture.acquired(&message, LONG).await;
    assert_eq!(
        (held.attempt(), held.last_error()),
        (2, Some("out\u{fffd} of stock"))
    );
    assert_eq!(
        held.release(&fixture.observer, "another", false)
            .await
            .unwrap(),
        None
    );

    let Lease::Exhausted(held) = fixture.acquire(&message, LONG).await else {
        panic!("the attempts are not used up");
    };
    assert_eq!(held.attempt(), 2);
    let kept = InboxMessage::bytes("[1]")
        .key("k")
        .message_type("Order")
        .content_type("application/json")
        .header("x", "1");
    held.bury(&fixture.observer, &kept, "enough").await.unwrap();
    assert!(matches!(fixture.acquire(&message, LONG).await, Lease::Dead));
    let sql = "SELECT convert_from(payload, 'UTF8'), order_key, type, content_type,
                      headers->>'x', attempt,
                      jsonb_path_query_array(errors, '$[*].error')::text FROM idem.dead_letter";
    let row = fixture.observer.query_one(sql, &[]).await.unwrap();
    let texts: Vec<&str> = (0..5).map(|n| row.get(n)).collect();
    assert_eq!(texts, ["[1]", "k", "Order", "application/json", "1"]);
    assert_eq!(row.get::<_, i32>(5), 2);
    let errors: &str = row.get(6);
    for error in ["of stock", "another"] {
        assert!(errors.contains(error), "{errors}");
    }
}

#[tokio::test]
async fn invalid_lease_length_fails() {
    let fixture = Fixture::new().await;
    let (id, destination) = (
        crate::fixtures::id(&message()),
        crate::fixtures::destination(),
    );
    for wrong in [Duration::ZERO, Duration::from_secs(86_400 * 1000)] {
        let error = idem_client::lease::acquire(&fixture.observer, &id, &destination, wrong)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

fn kind<T>(result: Result<T, idem_client::Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
