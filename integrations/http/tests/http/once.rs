//! A request with a key takes effect once.

use futures_util::future::join_all;

use crate::fixtures::{App, DESTINATION, Fixture, MODES, Server, ask, layer};

/// Goal: a repeated request gets the recorded response, and its handler does not run again.
#[tokio::test]
async fn repeated_request_gets_the_recorded_response() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let first = fixture.send(&ask("once")).await;
        first.assert_run(201, 1);
        for _ in 0..3 {
            fixture.send(&ask("once")).await.assert_replay_of(&first);
        }
        assert_eq!(fixture.runs(), 1, "{mode:?}");
        assert_eq!(
            (
                fixture.work("once").await,
                fixture.sent().await,
                fixture.claims().await
            ),
            (2, 1, 1)
        );
        fixture.send(&ask("another")).await.assert_run(201, 2);
    }
}

/// I3: a request whose key was forgotten runs once more, and its new response is recorded.
#[tokio::test]
async fn i3_forgotten_request_runs_and_is_recorded_again() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        fixture.send(&ask("again")).await.assert_run(201, 1);
        let forget = format!("SELECT idem_forget('all:again', '{DESTINATION}')");
        let forgotten = fixture.observer.query_one(&forget, &[]).await.unwrap();
        assert!(forgotten.get::<_, bool>(0));
        let second = fixture.send(&ask("again")).await;
        second.assert_run(201, 2);
        fixture.send(&ask("again")).await.assert_replay_of(&second);
        assert_eq!((fixture.runs(), fixture.claims().await), (2, 1), "{mode:?}");
    }
}

/// I11: parallel first requests of a new destination, each with its own key, all run at once.
#[tokio::test]
async fn i11_first_requests_of_a_destination_run_in_parallel() {
    const REQUESTS: usize = 4;
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let requests = (0..REQUESTS).map(|n| ask(&n.to_string()).with("x-hold", "1"));
        let requests: Vec<_> = requests.collect();
        let sent = join_all(requests.iter().map(|request| fixture.send(request)));
        let (responses, ()) = tokio::join!(sent, async {
            fixture.until_running(REQUESTS).await;
            fixture.app.gate.add_permits(REQUESTS);
        });
        for response in responses {
            assert_eq!(response.status, 201, "{mode:?}: {response:?}");
        }
    }
}

#[tokio::test]
async fn concurrent_request_with_the_key_gets_409_and_retry_after() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let held = ask("held").with("x-hold", "1");
        let (first, ()) = tokio::join!(fixture.send(&held), async {
            fixture.until_running(1).await;
            let second = fixture.send(&ask("held")).await;
            second.assert_problem(409, "in-progress");
            assert_eq!(second.headers["retry-after"], "1");
            fixture.app.gate.add_permits(1);
        });
        first.assert_run(201, 1);
        fixture.send(&ask("held")).await.assert_replay_of(&first);
        assert_eq!(
            (fixture.runs(), fixture.work("held").await),
            (1, 2),
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn concurrent_requests_run_one_handler() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        for round in 1..=10 {
            let key = format!("race-{round}");
            let request = ask(&key);
            let responses = join_all((0..6).map(|_| fixture.send(&request))).await;
            let (new, old): (Vec<_>, Vec<_>) = responses
                .iter()
                .partition(|response| response.status == 201 && !response.is_replayed());
            assert_eq!(new.len(), 1, "{mode:?}: {responses:?}");
            new[0].assert_run(201, round);
            for response in old {
                match response.status.as_u16() {
                    201 => response.assert_replay_of(new[0]),
                    _ => response.assert_problem(409, "in-progress"),
                }
            }
            assert_eq!(
                (fixture.work(&key).await, fixture.runs()),
                (2, round),
                "{mode:?}"
            );
        }
    }
}

#[tokio::test]
async fn other_request_with_the_same_key_gets_422_and_is_not_run() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        fixture.send(&ask("k")).await.assert_run(201, 1);
        for other in [
            ask("k").body("another body"),
            ask("k").path("/others"),
            ask("k").path("/orders?dry=1"),
            ask("k").method(http::Method::PATCH),
        ] {
            fixture.send(&other).await.assert_problem(422, "mismatch");
        }
        assert_eq!((fixture.runs(), fixture.claims().await), (1, 1), "{mode:?}");
    }
}

/// I4. Goal: a layer inside of a nested router does not give one account the response of another.
#[tokio::test]
async fn i4_fingerprint_has_the_path_before_a_nested_router() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let first = fixture.send(&ask("k").path("/accounts/7/orders")).await;
        first.assert_run(201, 1);
        let other = ask("k").path("/accounts/8/orders");
        fixture.send(&other).await.assert_problem(422, "mismatch");
        let again = ask("k").path("/accounts/7/orders");
        fixture.send(&again).await.assert_replay_of(&first);
    }
}

/// Goal: the record of a request is only in the database, so a second service with its own pool can
/// replay the response.
#[tokio::test]
async fn other_process_replays_the_recorded_response() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let first = fixture.send(&ask("restart")).await;
        let app = App::new(fixture.database.pool(2));
        let second = Server::start(app.router(layer(mode, fixture.database.pool(2)))).await;
        fixture
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
async fn each_caller_has_its_own_keys() {
    for mode in MODES {
        let fixture = Fixture::of_tenants(mode).await;
        let first = fixture.send(&ask("k").with("x-tenant", "a")).await;
        first.assert_run(201, 1);
        fixture
            .send(&ask("k").with("x-tenant", "b"))
            .await
            .assert_run(201, 2);
        fixture
            .send(&ask("k").with("x-tenant", "a"))
            .await
            .assert_replay_of(&first);
        // The caller and the key are not simply concatenated: "a" with "b:k" and "a:b" with "k" are
        // different.
        fixture
            .send(&ask("b:k").with("x-tenant", "a"))
            .await
            .assert_run(201, 3);
        fixture
            .send(&ask("k").with("x-tenant", "a:b"))
            .await
            .assert_run(201, 4);
        fixture
            .send(&ask("k"))
            .await
            .assert_problem(403, "unknown-caller");
        // Otherwise all callers without a name would get each other's responses.
        let unnamed = fixture.send(&ask("k").with("x-tenant", "")).await;
        unnamed.assert_problem(403, "unknown-caller");
        assert_eq!((fixture.runs(), fixture.claims().await), (4, 4), "{mode:?}");
    }
}
