//! Tests which responses are recorded, and which of their headers.

use crate::fixtures::{Fixture, MODES, Mode, ask};

#[tokio::test]
async fn transient_failure_is_not_recorded_and_runs_again() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let mut run = 0;
        for status in [500, 502, 503, 504, 409, 429] {
            for _ in 0..2 {
                run += 1;
                let failed = ask("k").with("x-status", &status.to_string());
                fixture.send(&failed).await.assert_run(status, run);
                assert_eq!(fixture.claims().await, 0, "{mode:?} {status}");
            }
        }
        if mode == Mode::Transaction {
            fixture.assert_untouched().await;
        }
        let done = fixture.send(&ask("k")).await;
        done.assert_run(201, run + 1);
        fixture
            .send(&ask("k").with("x-status", "500"))
            .await
            .assert_replay_of(&done);
    }
}

#[tokio::test]
async fn success_redirection_and_client_error_are_recorded() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        for (run, status) in [200, 201, 202, 303, 308, 400, 402, 404, 422]
            .into_iter()
            .enumerate()
        {
            let key = format!("status-{status}");
            let first = fixture
                .send(&ask(&key).with("x-status", &status.to_string()))
                .await;
            first.assert_run(status, run + 1);
            fixture.send(&ask(&key)).await.assert_replay_of(&first);
        }
        assert_eq!((fixture.runs(), fixture.claims().await), (9, 9), "{mode:?}");
    }
}

#[tokio::test]
async fn headers_are_recorded_except_cookies_and_connection_headers() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let first = fixture.send(&ask("k")).await;
        assert_eq!(first.headers["set-cookie"], "session=secret", "{mode:?}");
        let again = fixture.send(&ask("k")).await;
        again.assert_replay_of(&first);
        assert_eq!(
            (&again.headers["x-other"], &again.headers["content-type"]),
            (&first.headers["x-other"], &first.headers["content-type"])
        );
        assert!(
            !again.headers.contains_key("set-cookie"),
            "{mode:?}: {again:?}"
        );
        assert_eq!(
            again.headers["content-length"],
            again.body.len().to_string().as_str()
        );
        let recorded = "SELECT count(*) FROM idem.inbox i, idem_calls(i.id, i.destination) c
                        WHERE c.response::text ~ 'secret|\"date\"'";
        assert_eq!(fixture.count(recorded).await, 0, "{mode:?}");
    }
}

#[tokio::test]
async fn keep_headers_selects_the_recorded_headers() {
    for mode in MODES {
        let fixture = Fixture::with(mode, |layer| {
            layer.keep_headers(|name| name == "x-run" || name == "connection")
        })
        .await;
        let first = fixture.send(&ask("k")).await;
        let again = fixture.send(&ask("k")).await;
        again.assert_replay_of(&first);
        assert!(
            !again.headers.contains_key("x-other") && !again.headers.contains_key("content-type"),
            "{again:?}"
        );
    }
}

/// Goal: a repeated request gets the recorded 4xx response. The writes of the handler are rolled
/// back unless the handler asks to keep them.
#[tokio::test]
async fn client_error_rolls_back_the_writes_of_its_handler() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let rejected = fixture.send(&ask("k").with("x-status", "402")).await;
    rejected.assert_run(402, 1);
    assert_eq!(
        (
            fixture.work("k").await,
            fixture.sent().await,
            fixture.claims().await
        ),
        (0, 0, 1)
    );
    fixture.send(&ask("k")).await.assert_replay_of(&rejected);

    let kept = ask("kept")
        .with("x-status", "402")
        .with("x-keep-writes", "1");
    fixture.send(&kept).await.assert_run(402, 2);
    assert_eq!(
        (
            fixture.work("kept").await,
            fixture.sent().await,
            fixture.claims().await
        ),
        (2, 1, 2)
    );
}

/// Goal: a 4xx response can be recorded after a statement of the handler has failed, because the
/// layer rolls back to a savepoint. A failed statement, for example a violated constraint, is a
/// common reason for a 4xx response.
#[tokio::test]
async fn failed_statement_permits_to_record_errors_only() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let rejected = fixture
        .send(&ask("k").with("x-fail", "1").with("x-status", "422"))
        .await;
    rejected.assert_run(422, 1);
    fixture.send(&ask("k")).await.assert_replay_of(&rejected);

    let pretended = fixture.send(&ask("pretended").with("x-fail", "1")).await;
    pretended.assert_problem(500, "failed");
    assert_eq!(
        (fixture.work("pretended").await, fixture.claims().await),
        (0, 1)
    );
    fixture.send(&ask("pretended")).await.assert_run(201, 3);
}

#[tokio::test]
async fn handler_that_keeps_its_transaction_commits_nothing() {
    let fixture = Fixture::new(Mode::Transaction).await;
    for status in ["201", "402", "503"] {
        let kept = fixture
            .send(&ask("k").with("x-keep-tx", "1").with("x-status", status))
            .await;
        kept.assert_problem(500, "failed");
        let tx = fixture.app.kept.lock().unwrap().take().unwrap();
        let _ = tx.batch_execute("COMMIT").await;
        fixture.assert_untouched().await;
    }
    drop(fixture.app.kept.lock().unwrap().take());
    fixture.until_quiet().await;
    fixture
        .send_until_settled(&ask("k"))
        .await
        .assert_run(201, 4);
}

/// I2: if a handler ends its transaction itself, or changes its search_path, the layer does not
/// deliver its response, and nothing is committed or recorded: a repeated request with the same key
/// runs and succeeds. With a status of 4xx, the layer first rolls back to its savepoint, so the
/// response is recorded unless the transaction has ended.
#[tokio::test]
async fn handler_that_ends_its_transaction_is_an_error() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let mut runs = 0;
    let (mut handled, mut refused) = (0, 0);
    for (end, is_ignored) in [
        ("ROLLBACK", false),
        ("ROLLBACK; BEGIN", false),
        ("COMMIT", true),
        ("COMMIT AND CHAIN", true),
        ("COMMIT", false),
        ("SET LOCAL search_path = pg_catalog", false),
    ] {
        for status in ["201", "402", "503"] {
            let key = format!("{end} {is_ignored} {status}");
            let mut ends = ask(&key).with("x-end", end).with("x-status", status);
            if is_ignored {
                ends = ends.with("x-ignore-end", "1");
            }
            let ended = fixture.send(&ends).await;
            runs += 1;
            let has_ended = end.starts_with("ROLLBACK");
            match (end, is_ignored, status) {
                // The handler returns the error of its COMMIT as its own response.
                ("COMMIT", false, _) => assert!(ended.body.contains("2D000"), "{ended:?}"),
                // A response that is not recorded is delivered.
                (_, _, "503") => ended.assert_run(503, runs),
                (_, _, "402") if !has_ended => {
                    ended.assert_run(402, runs);
                    fixture.send(&ask(&key)).await.assert_replay_of(&ended);
                    assert_eq!(fixture.work(&key).await, 0, "{key}");
                    refused += 1;
                    continue;
                }
                _ => ended.assert_problem(500, "failed"),
            }
            fixture.until_quiet().await;
            assert_eq!(fixture.work(&key).await, 0, "{key}");

            let done = fixture.send(&ask(&key)).await;
            runs += 1;
            done.assert_run(201, runs);
            handled += 1;
            fixture.send(&ask(&key)).await.assert_replay_of(&done);
            assert_eq!(fixture.work(&key).await, 2, "{key}");
        }
    }
    assert_eq!(
        (fixture.claims().await, fixture.sent().await),
        (handled + refused, handled)
    );
    fixture.until_quiet().await;
}
