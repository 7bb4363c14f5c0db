//! External calls of a leased message, whose lease may be lost.

use idem_client::journal::{CallState, calls};
use idem_runtime::{
    Error,
    journal::{CallError, CallFailed, Calls},
};
use idem_testkit::proxy::Proxy;
use serde_json::Value;

use crate::{
    fixtures::{Fixture, LONG, destination, id, message},
    once::{Gateway, begin, state},
};

#[track_caller]
fn assert_lease_lost(failed: &CallFailed) {
    assert!(
        matches!(
            failed,
            CallFailed::Journal {
                error: Error::LeaseLost,
                ..
            }
        ),
        "{failed:?}"
    );
}

#[tokio::test]
async fn lost_lease_prevents_the_call() {
    let fixture = Fixture::new().await;
    let message = message();
    let lost = fixture.acquired(&message, LONG).await;
    fixture.expire(&message).await;
    let held = fixture.acquired_next(&message).await;
    let gateway = Gateway::default();
    let late = Calls::of(&lost, &fixture.pool)
        .once("charge", &5, |key| gateway.ask(key))
        .await
        .unwrap_err();
    assert_lease_lost(&late);
    assert_eq!(
        (gateway.asked(), state(&fixture, &message, "charge").await),
        (0, None)
    );
    let response = Calls::of(&held, &fixture.pool)
        .once("charge", &5, |key| gateway.ask(key))
        .await;
    assert_eq!(response.unwrap(), 1);
}

/// Goal: the extension of the lease and the journal entry commit together, also if the server
/// cancels the BEGIN in front of them. Without a lease there is no entry. Invariant: I2.
#[tokio::test]
async fn i2_cancelled_begin_leaves_no_entry_without_a_lease() {
    let fixture = Fixture::new().await;
    let message = message();
    let lost = fixture.acquired(&message, LONG).await;
    fixture.expire(&message).await;
    let _held = fixture.acquired_next(&message).await;
    let proxy = Proxy::to(&fixture.database).await;
    let pool = proxy.pool(1);
    drop(pool.get().await.unwrap());
    proxy.cancel_begin_once();
    let gateway = Gateway::default();
    let late = Calls::of(&lost, &pool)
        .once("charge", &5, |key| gateway.ask(key))
        .await
        .unwrap_err();
    assert!(proxy.has_cancelled());
    assert_lease_lost(&late);
    // A connection executes its requests in order. So when this request has ended, all requests of
    // the call have been executed.
    pool.get().await.unwrap().batch_execute("").await.unwrap();
    assert_eq!(
        (gateway.asked(), state(&fixture, &message, "charge").await),
        (0, None)
    );
}

/// Goal: a response is recorded also if it arrives after the lease was lost, because the call has
/// been made.
#[tokio::test]
async fn response_is_recorded_after_the_lease_is_lost() {
    let fixture = Fixture::new().await;
    let message = message();
    let held = fixture.acquired(&message, LONG).await;
    let response = Calls::of(&held, &fixture.pool)
        .once("charge", &5, async |_| {
            fixture.expire(&message).await;
            let _next = fixture.acquired_next(&message).await;
            Ok::<_, CallError>(7)
        })
        .await;
    assert_eq!(response.unwrap(), 7);
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Done)
    );
}

/// Goal: a process whose lease is lost does not end or take back the attempt of the next holder.
/// Otherwise the call of the next holder would be new again after it was made.
#[tokio::test]
async fn failure_is_not_recorded_after_the_lease_is_lost() {
    let fixture = Fixture::new().await;
    let failures = [
        || CallError::refused("no such card"),
        || CallError::not_done("no connection"),
    ];
    for failure in failures {
        let message = message();
        let held = fixture.acquired(&message, LONG).await;
        let late = Calls::of(&held, &fixture.pool)
            .once("charge", &5, async |_| {
                fixture.expire(&message).await;
                let _next = fixture.acquired_next(&message).await;
                begin(&fixture, &message, CallState::Unknown).await;
                Err::<Value, _>(failure())
            })
            .await
            .unwrap_err();
        assert_lease_lost(&late);
        let calls = calls(&fixture.observer, &id(&message), &destination())
            .await
            .unwrap();
        assert_eq!(
            (calls.len(), calls[0].state, calls[0].attempt),
            (1, CallState::Unknown, 2)
        );
    }
}
