//! Tests of requests with a valid key, with an invalid key, and without a key.

use http::Method;

use crate::fixtures::{Fixture, MODES, ask};

#[tokio::test]
async fn missing_required_key_gets_400() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        fixture
            .send(&ask("k").without_key())
            .await
            .assert_problem(400, "missing-key");
        assert_eq!(fixture.runs(), 0);
        fixture.assert_untouched().await;
    }
}

#[tokio::test]
async fn request_without_an_optional_key_passes_through() {
    for mode in MODES {
        let fixture = Fixture::with(mode, |layer| layer.required(false)).await;
        for run in 1..=2 {
            fixture
                .send(&ask("k").without_key())
                .await
                .assert_run(201, run);
        }
        assert_eq!(
            (fixture.claims().await, fixture.work("k").await),
            (0, 4),
            "{mode:?}"
        );
        let first = fixture.send(&ask("k")).await;
        first.assert_run(201, 3);
        fixture.send(&ask("k")).await.assert_replay_of(&first);
    }
}

#[tokio::test]
async fn invalid_key_gets_400() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        for bad in [
            "",
            "\"\"",
            "\"open",
            "two words",
            "\"a\" \"b\"",
            &"x".repeat(256),
        ] {
            let bad = ask("k").without_key().with("idempotency-key", bad);
            fixture.send(&bad).await.assert_problem(400, "bad-key");
        }
        let twice = ask("k").with("idempotency-key", "\"k\"");
        fixture.send(&twice).await.assert_problem(400, "bad-key");
        fixture.assert_untouched().await;
    }
}

#[tokio::test]
async fn quoted_and_unquoted_key_are_the_same() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let first = fixture.send(&ask("k")).await;
        let bare = ask("k").without_key().with("idempotency-key", "k");
        fixture.send(&bare).await.assert_replay_of(&first);
    }
}

#[tokio::test]
async fn unprotected_methods_pass_through() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        for (run, method) in [Method::GET, Method::PUT, Method::DELETE, Method::PUT]
            .into_iter()
            .enumerate()
        {
            fixture
                .send(&ask("k").method(method))
                .await
                .assert_run(201, run + 1);
        }
        assert_eq!(fixture.claims().await, 0, "{mode:?}");

        let fixture = Fixture::with(mode, |layer| layer.methods([Method::PUT])).await;
        let first = fixture.send(&ask("k").method(Method::PUT)).await;
        first.assert_run(201, 1);
        fixture
            .send(&ask("k").method(Method::PUT))
            .await
            .assert_replay_of(&first);
        fixture.send(&ask("k")).await.assert_run(201, 2);
        assert_eq!(fixture.claims().await, 1, "{mode:?}");
    }
}
