//! An external call that is dropped at any await point is new, unknown or done. If the external
//! system may have been called, the call is not new.

use idem_client::journal::CallState;
use idem_testkit::polls::{Moment, poll_times};

use crate::{
    fixtures::{Fixture, destination, id, message},
    once::{Gateway, state},
};

#[tokio::test]
async fn dropped_call_is_not_new_if_it_was_made() {
    assert_made_call_is_never_new().await;
}

/// Goal: a call that was made is not new after a drop, also when another thread serves the
/// connection. At the drop, this thread may or may not have sent the last statement.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_call_is_not_new_with_connection_on_other_thread() {
    assert_made_call_is_never_new().await;
}

/// Drops the call at each of its await points. Asserts that a call that was made is not new then,
/// and that the next attempt completes it with the same key.
async fn assert_made_call_is_never_new() {
    let fixture = Fixture::new().await;
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        let pool = fixture.database.pool(1);
        for polls in 1.. {
            let message = message();
            let gateway = Gateway::default();
            let journal = idem_runtime::journal::Calls::new(&pool, &id(&message), &destination());
            let call = async |key| {
                tokio::task::yield_now().await;
                let response = gateway.ask(key).await;
                tokio::task::yield_now().await;
                response
            };
            let response = poll_times(journal.once("charge", &5, call), polls, moment).await;
            fixture.until_quiet_beside(&pool).await;
            let before = state(&fixture, &message, "charge").await;
            match before {
                None | Some(CallState::New) => assert_eq!(gateway.asked(), 0, "after {polls}"),
                Some(CallState::Unknown) => assert!(gateway.asked() <= 1),
                Some(CallState::Done) => assert_eq!(gateway.asked(), 1),
                Some(other) => panic!("no call was rejected: {other:?}"),
            }
            // The next attempt completes the step with the same idempotency key. If the connection
            // is still open, the attempt uses it.
            let asked = gateway.asked();
            journal
                .once("charge", &5, |key| gateway.ask(key))
                .await
                .unwrap();
            let is_done = before == Some(CallState::Done);
            assert_eq!(gateway.asked(), asked + usize::from(!is_done));
            assert_eq!(gateway.keys(), 1);
            if response.is_some() {
                assert!(is_done);
                break;
            }
        }
    }
}
