//! Tests of the mode with a lease: behaviour that differs from the mode with a transaction.

use std::{sync::atomic::Ordering, time::Duration};

use idem_client::{
    MessageId,
    lease::{Lease, acquire},
};
use idem_testkit::until;

use crate::{
    failures::leave,
    fixtures::{Fixture, Mode, ask, destination},
};

/// Returns the message id of a request with this key if all callers share their keys.
fn id(key: &str) -> MessageId {
    MessageId::text(format!("all:{key}")).unwrap()
}

#[tokio::test]
async fn leased_request_is_recorded_after_a_disconnect() {
    let fixture = Fixture::new(Mode::Lease).await;
    leave(&fixture, &ask("gone")).await;
    fixture
        .send(&ask("gone"))
        .await
        .assert_problem(409, "in-progress");
    fixture.app.gate.add_permits(1);
    until("the response is recorded", || async {
        fixture.claims().await == 1
    })
    .await;
    let again = fixture.send(&ask("gone")).await;
    assert!(
        again.is_replayed() && again.headers["x-run"] == "1",
        "{again:?}"
    );
    assert_eq!(
        (
            fixture.runs(),
            fixture.work("gone").await,
            fixture.sent().await
        ),
        (1, 2, 1)
    );
}

/// Goal: a request with a lease holds no connection while its handler runs. So the request succeeds
/// although all connections are terminated.
#[tokio::test]
async fn leased_request_survives_the_loss_of_all_connections() {
    let fixture = Fixture::new(Mode::Lease).await;
    let held = ask("killed").with("x-hold", "1");
    let (first, ()) = tokio::join!(fixture.send(&held), async {
        fixture.until_running(1).await;
        fixture.until_quiet().await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND backend_type = 'client backend'";
        assert!(fixture.count(kill).await > 0);
        until("all connections are closed", || async {
            fixture
                .count(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()
                       AND backend_type = 'client backend'",
                )
                .await
                == 0
        })
        .await;
        fixture.app.gate.add_permits(1);
    });
    first.assert_run(201, 1);
    fixture.send(&ask("killed")).await.assert_replay_of(&first);
}

#[tokio::test]
async fn lease_is_renewed_while_the_handler_runs() {
    let fixture = Fixture::with(Mode::Lease, |layer| layer.lease_for(Duration::from_secs(2))).await;
    let held = ask("slow").with("x-hold", "1");
    let (first, ()) = tokio::join!(fixture.send(&held), async {
        fixture.until_running(1).await;
        let ends = "SELECT extract(epoch FROM max(until))::float8 FROM idem.leases";
        let first_end: f64 = fixture.observer.query_one(ends, &[]).await.unwrap().get(0);
        until("the lease is renewed beyond its first end", || async {
            let end: Option<f64> = fixture.observer.query_one(ends, &[]).await.unwrap().get(0);
            end.is_some_and(|end| end > first_end + 2.0)
        })
        .await;
        fixture
            .send(&ask("slow"))
            .await
            .assert_problem(409, "in-progress");
        fixture.app.gate.add_permits(1);
    });
    first.assert_run(201, 1);
    assert_eq!(fixture.runs(), 1);
}

/// Goal: a paused process loses the lease to another process. When its handler ends, the first
/// process returns the response that the second process recorded.
#[tokio::test]
async fn lost_lease_returns_the_response_of_the_other_process() {
    let fixture = Fixture::new(Mode::Lease).await;
    let held = ask("lost").with("x-hold", "1");
    let (late, ()) = tokio::join!(fixture.send(&held), async {
        fixture.until_running(1).await;
        let end = "UPDATE idem.pending_0 SET due_at = clock_timestamp() - interval '1 second'";
        fixture.observer.batch_execute(end).await.unwrap();
        let other = fixture.send(&ask("lost").with("x-size", "7")).await;
        other.assert_run(201, 2);
        fixture.app.gate.add_permits(1);
    });
    let again = fixture.send(&ask("lost")).await;
    for response in [late, again] {
        assert!(
            response.is_replayed() && response.headers["x-run"] == "2",
            "{response:?}"
        );
    }
    assert_eq!(fixture.claims().await, 1);
}

/// Goal: when a process crashes during a request, a repeated request runs after the lease has
/// expired.
#[tokio::test]
async fn request_of_a_crashed_process_runs_after_its_lease() {
    let fixture = Fixture::new(Mode::Lease).await;
    let dead = acquire(
        &fixture.observer,
        &id("dead"),
        &destination(),
        Duration::from_secs(2),
    )
    .await
    .unwrap();
    assert!(matches!(dead, Lease::Acquired(_)));
    fixture
        .send(&ask("dead"))
        .await
        .assert_problem(409, "in-progress");
    fixture
        .send_until_settled(&ask("dead"))
        .await
        .assert_run(201, 1);
}

/// Goal: when the processes that ran a request have crashed as often as the retry policy permits,
/// the request fails and is not run again.
#[tokio::test]
async fn request_without_remaining_attempts_is_not_run() {
    let fixture = Fixture::new(Mode::Lease).await;
    let one_attempt = "SELECT idem_configure_retries('http.tests', max_attempts => 1)";
    fixture.observer.batch_execute(one_attempt).await.unwrap();
    let dead = acquire(
        &fixture.observer,
        &id("dead"),
        &destination(),
        Duration::from_millis(1),
    )
    .await
    .unwrap();
    assert!(matches!(dead, Lease::Acquired(_)));
    for _ in 0..2 {
        fixture
            .send_until_settled(&ask("dead"))
            .await
            .assert_problem(500, "exhausted");
    }
    assert_eq!((fixture.runs(), fixture.claims().await), (0, 0));
}

#[tokio::test]
async fn external_call_is_not_repeated_after_a_failed_request() {
    let fixture = Fixture::new(Mode::Lease).await;
    let charge = ask("charge").with("x-charge", "1");
    fixture
        .send(&charge.clone().with("x-status", "500"))
        .await
        .assert_run(500, 1);
    let done = fixture.send(&charge).await;
    done.assert_run(201, 2);
    fixture.send(&charge).await.assert_replay_of(&done);
    assert_eq!(fixture.app.charges.load(Ordering::SeqCst), 1);
}

/// Goal: from the start of the handler, a different request with the same key is rejected, also if
/// the first attempt has failed. The first attempt may have had an effect outside of the database.
#[tokio::test]
async fn key_is_bound_to_its_request_when_the_handler_begins() {
    let fixture = Fixture::new(Mode::Lease).await;
    fixture
        .send(&ask("bound").with("x-status", "500"))
        .await
        .assert_run(500, 1);
    for _ in 0..2 {
        let other = fixture.send(&ask("bound").body("another body")).await;
        other.assert_problem(422, "mismatch");
    }
    fixture.send(&ask("bound")).await.assert_run(201, 2);
}
