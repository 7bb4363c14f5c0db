//! What is so only where the work shares no transaction.

use std::{sync::atomic::Ordering, time::Duration};

use idem_client::{
    MessageId,
    lease::{Lease, acquire},
};

use crate::{
    failures::leave,
    ground::{Ground, Mode, ask, destination},
    support::until,
};

/// The id of a request with this key, when all callers share the keys.
fn id(key: &str) -> MessageId {
    MessageId::text(format!("all:{key}")).unwrap()
}

#[tokio::test]
async fn the_work_of_a_client_that_goes_away_is_done_and_recorded() {
    let ground = Ground::new(Mode::Lease).await;
    leave(&ground, &ask("gone")).await;
    ground
        .send(&ask("gone"))
        .await
        .assert_problem(409, "in-progress");
    ground.app.gate.add_permits(1);
    until("it is recorded", || async { ground.claims().await == 1 }).await;
    let again = ground.send(&ask("gone")).await;
    assert!(
        again.is_replayed() && again.headers["x-run"] == "1",
        "{again:?}"
    );
    assert_eq!(
        (
            ground.runs(),
            ground.work("gone").await,
            ground.sent().await
        ),
        (1, 2, 1)
    );
}

/// No connection is taken while the handler works.
#[tokio::test]
async fn a_request_lives_through_the_end_of_all_connections() {
    let ground = Ground::new(Mode::Lease).await;
    let held = ask("killed").with("x-hold", "1");
    let (first, ()) = tokio::join!(ground.send(&held), async {
        ground.until_running(1).await;
        ground.until_quiet().await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        assert!(ground.count(kill).await > 0);
        until("they are gone", || async {
            ground
                .count(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
                )
                .await
                == 0
        })
        .await;
        ground.app.gate.add_permits(1);
    });
    first.assert_run(201, 1);
    ground.send(&ask("killed")).await.assert_replay_of(&first);
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_the_work_takes() {
    let ground = Ground::with(Mode::Lease, |layer| layer.lease_for(Duration::from_secs(2))).await;
    let held = ask("slow").with("x-hold", "1");
    let (first, ()) = tokio::join!(ground.send(&held), async {
        ground.until_running(1).await;
        let ends = "SELECT extract(epoch FROM max(until))::float8 FROM idem.leases";
        let first_end: f64 = ground.observer.query_one(ends, &[]).await.unwrap().get(0);
        until("it was renewed for longer than it was leased", || async {
            let end: Option<f64> = ground.observer.query_one(ends, &[]).await.unwrap().get(0);
            end.is_some_and(|end| end > first_end + 2.0)
        })
        .await;
        ground
            .send(&ask("slow"))
            .await
            .assert_problem(409, "in-progress");
        ground.app.gate.add_permits(1);
    });
    first.assert_run(201, 1);
    assert_eq!(ground.runs(), 1);
}

/// As it would be in a process that was paused: another one has the lease when the work is done.
#[tokio::test]
async fn who_has_lost_the_lease_records_nothing_and_answers_what_is_recorded() {
    let ground = Ground::new(Mode::Lease).await;
    let held = ask("lost").with("x-hold", "1");
    let (late, ()) = tokio::join!(ground.send(&held), async {
        ground.until_running(1).await;
        let end = "UPDATE idem.pending_0 SET due_at = clock_timestamp() - interval '1 second'";
        ground.observer.batch_execute(end).await.unwrap();
        let other = ground.send(&ask("lost").with("x-size", "7")).await;
        other.assert_run(201, 2);
        ground.app.gate.add_permits(1);
    });
    let again = ground.send(&ask("lost")).await;
    for answer in [late, again] {
        assert!(
            answer.is_replayed() && answer.headers["x-run"] == "2",
            "{answer:?}"
        );
    }
    assert_eq!(ground.claims().await, 1);
}

/// What was leased by a process that has died.
#[tokio::test]
async fn a_request_whose_process_has_died_runs_when_its_lease_has_ended() {
    let ground = Ground::new(Mode::Lease).await;
    let dead = acquire(
        &ground.observer,
        &id("dead"),
        &destination(),
        Duration::from_secs(2),
    )
    .await
    .unwrap();
    assert!(matches!(dead, Lease::Acquired(_)));
    ground
        .send(&ask("dead"))
        .await
        .assert_problem(409, "in-progress");
    ground
        .send_until_settled(&ask("dead"))
        .await
        .assert_run(201, 1);
}

#[tokio::test]
async fn a_request_whose_processes_have_died_as_often_as_they_may_is_not_run() {
    let ground = Ground::new(Mode::Lease).await;
    let at_most_once = "SELECT idem_configure_retries('http.tests', max_attempts => 1)";
    ground.observer.batch_execute(at_most_once).await.unwrap();
    let dead = acquire(
        &ground.observer,
        &id("dead"),
        &destination(),
        Duration::from_millis(1),
    )
    .await
    .unwrap();
    assert!(matches!(dead, Lease::Acquired(_)));
    for _ in 0..2 {
        ground
            .send_until_settled(&ask("dead"))
            .await
            .assert_problem(500, "exhausted");
    }
    assert_eq!((ground.runs(), ground.claims().await), (0, 0));
}

#[tokio::test]
async fn a_call_of_a_request_that_failed_is_not_made_again() {
    let ground = Ground::new(Mode::Lease).await;
    let charge = ask("charge").with("x-charge", "1");
    ground
        .send(&charge.clone().with("x-status", "500"))
        .await
        .assert_run(500, 1);
    let done = ground.send(&charge).await;
    done.assert_run(201, 2);
    ground.send(&charge).await.assert_replay_of(&done);
    assert_eq!(ground.app.charges.load(Ordering::SeqCst), 1);
}

/// The first attempt may have had an effect outside of the database.
#[tokio::test]
async fn a_key_is_bound_to_its_request_when_the_work_begins() {
    let ground = Ground::new(Mode::Lease).await;
    ground
        .send(&ask("bound").with("x-status", "500"))
        .await
        .assert_run(500, 1);
    for _ in 0..2 {
        let other = ground.send(&ask("bound").body("another body")).await;
        other.assert_problem(422, "mismatch");
    }
    ground.send(&ask("bound")).await.assert_run(201, 2);
}
