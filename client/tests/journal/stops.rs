//! A call that is dropped at any await is new, unknown or done, and unknown if somebody may have
//! been asked.

use idem_client::journal::CallState;

use crate::{
    ground::{Ground, destination, id, message},
    once::{Gateway, state},
    polls::{Moment, poll_times},
};

#[tokio::test]
async fn a_call_that_is_dropped_at_any_await_is_never_new_after_somebody_was_asked() {
    stop_everywhere().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_beside_its_connection_is_never_new_after_somebody_was_asked() {
    stop_everywhere().await;
}

async fn stop_everywhere() {
    let ground = Ground::new().await;
    for moment in [Moment::AtOnce, Moment::WhenWoken] {
        let pool = ground.database.pool(1);
        for polls in 1.. {
            let message = message();
            let gateway = Gateway::default();
            let journal = idem_client::journal::Calls::new(&pool, &id(&message), &destination());
            let ask = async |key| {
                tokio::task::yield_now().await;
                let answer = gateway.ask(key).await;
                tokio::task::yield_now().await;
                answer
            };
            let answer = poll_times(journal.once("charge", &5, ask), polls, moment).await;
            ground.until_quiet_beside(&pool).await;
            let before = state(&ground, &message, "charge").await;
            match before {
                None | Some(CallState::New) => assert_eq!(gateway.asked(), 0, "after {polls}"),
                Some(CallState::Unknown) => assert!(gateway.asked() <= 1),
                Some(CallState::Done) => assert_eq!(gateway.asked(), 1),
                Some(CallState::Failed) => panic!("nobody refused"),
            }
            // The next one ends it, on the connection that was left, under the same key.
            let asked = gateway.asked();
            journal
                .once("charge", &5, |key| gateway.ask(key))
                .await
                .unwrap();
            let is_done = before == Some(CallState::Done);
            assert_eq!(gateway.asked(), asked + usize::from(!is_done));
            assert_eq!(gateway.keys(), 1);
            if answer.is_some() {
                assert!(is_done);
                break;
            }
        }
    }
}
