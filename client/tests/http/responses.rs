//! Which responses are recorded, and what of them.

use crate::ground::{Ground, MODES, Mode, ask};

#[tokio::test]
async fn what_may_succeed_later_is_not_recorded_and_runs_again() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        let mut run = 0;
        for status in [500, 502, 503, 504, 409, 429] {
            for _ in 0..2 {
                run += 1;
                let failed = ask("k").with("x-status", &status.to_string());
                ground.send(&failed).await.assert_run(status, run);
                assert_eq!(ground.claims().await, 0, "{mode:?} {status}");
            }
        }
        if mode == Mode::Transaction {
            ground.assert_untouched().await;
        }
        let done = ground.send(&ask("k")).await;
        done.assert_run(201, run + 1);
        ground
            .send(&ask("k").with("x-status", "500"))
            .await
            .assert_replay_of(&done);
    }
}

#[tokio::test]
async fn successes_redirections_and_refusals_are_recorded() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        for (run, status) in [200, 201, 202, 303, 308, 400, 402, 404, 422]
            .into_iter()
            .enumerate()
        {
            let key = format!("status-{status}");
            let first = ground
                .send(&ask(&key).with("x-status", &status.to_string()))
                .await;
            first.assert_run(status, run + 1);
            ground.send(&ask(&key)).await.assert_replay_of(&first);
        }
        assert_eq!((ground.runs(), ground.claims().await), (9, 9), "{mode:?}");
    }
}

#[tokio::test]
async fn which_statuses_are_recorded_can_be_said() {
    for mode in MODES {
        let ground = Ground::with(mode, |layer| {
            layer.keep_statuses(|status| status.is_success() || status == 500)
        })
        .await;
        for (run, status) in [404, 500, 404].into_iter().enumerate() {
            let failed = ask("k").with("x-status", &status.to_string());
            ground.send(&failed).await.assert_run(status, run + 1);
        }
        assert_eq!(ground.claims().await, 0, "{mode:?}");
        let done = ground.send(&ask("k")).await;
        ground.send(&ask("k")).await.assert_replay_of(&done);
    }
}

#[tokio::test]
async fn headers_are_recorded_but_for_cookies_and_those_of_the_connection() {
    for mode in MODES {
        let ground = Ground::new(mode).await;
        let first = ground.send(&ask("k")).await;
        assert_eq!(first.headers["set-cookie"], "session=secret", "{mode:?}");
        let again = ground.send(&ask("k")).await;
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
        let recorded = "SELECT count(*) FROM idem.inbox i, idem_calls(i.id, i.destination) c WHERE c.response::text ~ 'secret|\"date\"'";
        assert_eq!(ground.count(recorded).await, 0, "{mode:?}");
    }
}

#[tokio::test]
async fn which_headers_are_recorded_can_be_said() {
    for mode in MODES {
        let ground = Ground::with(mode, |layer| {
            layer.keep_headers(|name| name == "x-run" || name == "connection")
        })
        .await;
        let first = ground.send(&ask("k")).await;
        let again = ground.send(&ask("k")).await;
        again.assert_replay_of(&first);
        assert!(
            !again.headers.contains_key("x-other") && !again.headers.contains_key("content-type"),
            "{again:?}"
        );
    }
}

/// A repeated request finds the refusal, and the database nothing that the refused one has written.
#[tokio::test]
async fn a_refusal_takes_back_what_its_handler_has_written() {
    let ground = Ground::new(Mode::Transaction).await;
    let refused = ground.send(&ask("k").with("x-status", "402")).await;
    refused.assert_run(402, 1);
    assert_eq!(
        (
            ground.work("k").await,
            ground.sent().await,
            ground.claims().await
        ),
        (0, 0, 1)
    );
    ground.send(&ask("k")).await.assert_replay_of(&refused);

    let kept = ask("kept")
        .with("x-status", "402")
        .with("x-keep-writes", "1");
    ground.send(&kept).await.assert_run(402, 2);
    assert_eq!(
        (
            ground.work("kept").await,
            ground.sent().await,
            ground.claims().await
        ),
        (2, 1, 2)
    );
}

/// A statement that failed is what many a refusal comes from; its transaction can commit nothing
/// any more but for the savepoint.
#[tokio::test]
async fn a_refusal_after_a_failed_statement_is_recorded_and_a_success_after_one_is_not() {
    let ground = Ground::new(Mode::Transaction).await;
    let refused = ground
        .send(&ask("k").with("x-fail", "1").with("x-status", "422"))
        .await;
    refused.assert_run(422, 1);
    ground.send(&ask("k")).await.assert_replay_of(&refused);

    let pretended = ground.send(&ask("pretended").with("x-fail", "1")).await;
    pretended.assert_problem(500, "failed");
    assert_eq!(
        (ground.work("pretended").await, ground.claims().await),
        (0, 1)
    );
    ground.send(&ask("pretended")).await.assert_run(201, 3);
}

#[tokio::test]
async fn a_handler_that_keeps_its_transaction_gets_nothing_committed() {
    let ground = Ground::new(Mode::Transaction).await;
    for status in ["201", "402", "503"] {
        let kept = ground
            .send(&ask("k").with("x-keep-tx", "1").with("x-status", status))
            .await;
        kept.assert_problem(500, "failed");
        let tx = ground.app.kept.lock().unwrap().take().unwrap();
        let _ = tx.batch_execute("COMMIT").await;
        ground.assert_untouched().await;
    }
    drop(ground.app.kept.lock().unwrap().take());
    ground.until_quiet().await;
    ground
        .send_until_settled(&ask("k"))
        .await
        .assert_run(201, 4);
}
