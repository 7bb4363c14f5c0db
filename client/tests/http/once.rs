//! A key takes effect once.

use futures_util::future::join_all;

use crate::ground::{App, Ground, MODES, Server, ask, layer};

#[tokio::test]
async fn a_repeated_request_gets_the_recorded_response_and_its_handler_does_not_run_again() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        let first = ground.send(&ask("once")).await;
        first.assert_run(201, 1);
        for _ in 0..3 {
            ground.send(&ask("once")).await.assert_replay_of(&first);
        }
        assert_eq!(ground.runs(), 1, "{mode:?}");
        assert_eq!(
            (
                ground.work("once").await,
                ground.sent().await,
                ground.claims().await
            ),
            (2, 1, 1)
        );
        ground.send(&ask("another")).await.assert_run(201, 2);
    }
}

#[tokio::test]
async fn while_one_request_runs_another_with_its_key_gets_409_with_retry_after() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        let held = ask("held").with("x-hold", "1");
        let (first, ()) = tokio::join!(ground.send(&held), async {
            ground.until_running(1).await;
            let second = ground.send(&ask("held")).await;
            second.assert_problem(409, "in-progress");
            assert_eq!(second.headers["retry-after"], "1");
            ground.app.gate.add_permits(1);
        });
        first.assert_run(201, 1);
        ground.send(&ask("held")).await.assert_replay_of(&first);
        assert_eq!(
            (ground.runs(), ground.work("held").await),
            (1, 2),
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn of_requests_that_race_one_runs() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        for round in 1..=10 {
            let key = format!("race-{round}");
            let one = ask(&key);
            let answers = join_all((0..6).map(|_| ground.send(&one))).await;
            let (new, old): (Vec<_>, Vec<_>) = answers
                .iter()
                .partition(|answer| answer.status == 201 && !answer.is_replayed());
            assert_eq!(new.len(), 1, "{mode:?}: {answers:?}");
            new[0].assert_run(201, round);
            for answer in old {
                match answer.status.as_u16() {
                    201 => answer.assert_replay_of(new[0]),
                    _ => answer.assert_problem(409, "in-progress"),
                }
            }
            assert_eq!(
                (ground.work(&key).await, ground.runs()),
                (2, round),
                "{mode:?}"
            );
        }
    }
}

#[tokio::test]
async fn another_request_under_the_same_key_gets_422_and_is_not_run() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        ground.send(&ask("k")).await.assert_run(201, 1);
        for other in [
            ask("k").body("another body"),
            ask("k").path("/others"),
            ask("k").path("/orders?dry=1"),
            ask("k").method(http::Method::PATCH),
        ] {
            ground.send(&other).await.assert_problem(422, "mismatch");
        }
        assert_eq!((ground.runs(), ground.claims().await), (1, 1), "{mode:?}");
    }
}

/// Nothing is remembered but by the database: another service, with a pool of its own, knows the
/// response.
#[tokio::test]
async fn another_process_answers_from_the_record() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        let first = ground.send(&ask("restart")).await;
        let app = App::new(ground.database.pool(2));
        let second = Server::start(app.router(layer(mode, ground.database.pool(2)))).await;
        ground
            .send_to(second.address, &ask("restart"))
            .await
            .assert_replay_of(&first);
        assert_eq!(
            app.runs.load(std::sync::atomic::Ordering::SeqCst),
            0,
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn callers_have_keys_of_their_own() {
    for mode in MODES {
        let ground = Ground::of_tenants(mode).await;
        let first = ground.send(&ask("k").with("x-tenant", "a")).await;
        first.assert_run(201, 1);
        ground
            .send(&ask("k").with("x-tenant", "b"))
            .await
            .assert_run(201, 2);
        ground
            .send(&ask("k").with("x-tenant", "a"))
            .await
            .assert_replay_of(&first);
        // Wherever one puts the border between both.
        ground
            .send(&ask("b:k").with("x-tenant", "a"))
            .await
            .assert_run(201, 3);
        ground
            .send(&ask("k").with("x-tenant", "a:b"))
            .await
            .assert_run(201, 4);
        ground
            .send(&ask("k"))
            .await
            .assert_problem(403, "unknown-caller");
        assert_eq!((ground.runs(), ground.claims().await), (4, 4), "{mode:?}");
    }
}
