//! Tests of failures while a request is processed.

use std::io::Write;

use axum::body::Body;
use idem_testkit::{
    Database,
    proxy::{Cut, Proxy},
    standby::Standby,
    until,
};
use tower::ServiceExt;

use crate::fixtures::{Ask, Fixture, MODES, Mode, ask, layer};

/// Sends a request whose handler waits, and closes the connection after the handler has started.
pub async fn leave(fixture: &Fixture, ask: &Ask) {
    let mut stream = std::net::TcpStream::connect(fixture.server.address).unwrap();
    write!(
        stream,
        "{} {} HTTP/1.1\r\nhost: tests\r\nx-hold: 1\r\ncontent-length: {}\r\n",
        ask.method,
        ask.path,
        ask.body.len()
    )
    .unwrap();
    for (name, value) in &ask.headers {
        write!(stream, "{name}: {value}\r\n").unwrap();
    }
    stream.write_all(b"\r\n").unwrap();
    stream.write_all(&ask.body).unwrap();
    fixture.until_running(1).await;
}

#[tokio::test]
async fn disconnect_rolls_back_and_a_repeated_request_runs() {
    let fixture = Fixture::new(Mode::Transaction).await;
    leave(&fixture, &ask("gone")).await;
    fixture.until_running(0).await;
    let again = fixture.send_until_settled(&ask("gone")).await;
    again.assert_run(201, 2);
    assert_eq!(
        (
            fixture.work("gone").await,
            fixture.sent().await,
            fixture.claims().await
        ),
        (2, 1, 1)
    );
    fixture.send(&ask("gone")).await.assert_replay_of(&again);
}

#[tokio::test]
async fn request_fails_when_its_database_connection_is_terminated() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let held = ask("killed").with("x-hold", "1");
    let (killed, ()) = tokio::join!(fixture.send(&held), async {
        fixture.until_running(1).await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND state = 'idle in transaction'";
        assert_eq!(fixture.count(kill).await, 1);
        fixture.until_quiet().await;
        fixture.app.gate.add_permits(1);
    });
    assert_eq!(killed.status, 500, "{killed:?}");
    fixture.assert_untouched().await;
    fixture.send(&ask("killed")).await.assert_run(201, 2);
}

/// Goal: terminated connections in the pool are detected before a request uses them.
#[tokio::test]
async fn terminated_idle_connections_fail_no_request() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        fixture.send(&ask("first")).await.assert_run(201, 1);
        fixture.until_quiet().await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND backend_type = 'client backend'";
        assert!(fixture.count(kill).await > 0);
        let ask = ask("second");
        fixture.send(&ask).await.assert_run(201, 2);
    }
}

/// Goal: a commit continues if the client disconnects while the commit waits for the standby.
/// Invariant: I4.
#[tokio::test]
async fn i4_commit_of_a_dropped_request_continues() {
    let database = Database::create_alone("http-standby-away");
    let pool = database.pool(2);
    let fixture = Fixture::on(Mode::Transaction, database, pool.clone(), |layer| layer).await;
    fixture.send(&ask("first")).await.assert_run(201, 1);
    let router = fixture.app.router(layer(Mode::Transaction, pool));
    let standby = Standby::away(&fixture.database).await;
    let request = ask("second").to::<Body>(fixture.server.address);
    standby
        .drop_while_it_commits(async { drop(router.oneshot(request).await) })
        .await;
    assert_eq!(
        (fixture.work("second").await, fixture.claims().await),
        (0, 1)
    );
    standby.returns().await;
    assert_eq!(
        (fixture.work("second").await, fixture.claims().await),
        (2, 2)
    );
}

#[tokio::test]
async fn ambiguous_commit_gets_503_and_a_repeated_request_settles_it() {
    let database = Database::create();
    let proxy = Proxy::to(&database).await;
    let pool = proxy.pool(4);
    let fixture = Fixture::on(Mode::Transaction, database, pool, |layer| layer).await;

    proxy.cut_once(Cut::AfterCommit);
    fixture
        .send(&ask("committed"))
        .await
        .assert_problem(503, "in-doubt");
    let again = fixture.send_until_settled(&ask("committed")).await;
    assert!(
        again.is_replayed() && again.headers["x-run"] == "1",
        "{again:?}"
    );
    assert_eq!(
        (fixture.work("committed").await, fixture.claims().await),
        (2, 1)
    );

    proxy.cut_once(Cut::BeforeCommit);
    fixture
        .send(&ask("lost"))
        .await
        .assert_problem(503, "in-doubt");
    assert!(proxy.was_cut());
    let again = fixture.send_until_settled(&ask("lost")).await;
    again.assert_run(201, 3);
    assert_eq!(fixture.claims().await, 2);
}

/// Goal: after an ambiguous commit, the layer completes the lease again with the same token. The
/// second completion returns the result of the first completion.
#[tokio::test]
async fn ambiguous_commit_of_a_lease_is_settled_before_the_response() {
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let database = Database::create();
        let proxy = Proxy::to(&database).await;
        let pool = proxy.pool(4);
        let fixture = Fixture::on(Mode::Lease, database, pool, |layer| layer).await;
        let held = ask("doubt").with("x-hold", "1");
        let (first, ()) = tokio::join!(fixture.send(&held), async {
            fixture.until_running(1).await;
            fixture.until_quiet().await;
            proxy.cut_once(cut);
            fixture.app.gate.add_permits(1);
        });
        assert!(proxy.was_cut());
        first.assert_run(201, 1);
        fixture.send(&ask("doubt")).await.assert_replay_of(&first);
        assert_eq!((fixture.runs(), fixture.claims().await), (1, 1), "{cut:?}");
    }
}

/// Goal: if the handler has finished and its result cannot be recorded, the response reports an
/// unknown result. The handler may have had effects outside of the database.
#[tokio::test]
async fn finished_handler_that_cannot_be_recorded_gets_in_doubt() {
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let database = Database::create();
        let proxy = Proxy::to(&database).await;
        let pool = proxy.pool(4);
        let fixture = Fixture::on(Mode::Lease, database, pool, |layer| layer).await;
        let held = ask("doubt").with("x-hold", "1");
        let (first, ()) = tokio::join!(fixture.send(&held), async {
            fixture.until_running(1).await;
            fixture.until_quiet().await;
            proxy.cut_for_good(cut);
            fixture.app.gate.add_permits(1);
        });
        assert!(proxy.was_cut());
        first.assert_problem(503, "in-doubt");
        let is_done = i64::from(cut == Cut::AfterCommit);
        assert_eq!(
            (fixture.runs(), fixture.claims().await),
            (1, is_done),
            "{cut:?}"
        );
    }
}

#[tokio::test]
async fn unreachable_database_gets_503_and_runs_no_handler() {
    for mode in MODES {
        let database = Database::create();
        let unreachable = deadpool_postgres::Config {
            url: Some(
                "host=127.0.0.1 port=1 user=postgres dbname=postgres connect_timeout=5".into(),
            ),
            ..Default::default()
        };
        let pool = unreachable
            .create_pool(
                Some(deadpool_postgres::Runtime::Tokio1),
                tokio_postgres::NoTls,
            )
            .unwrap();
        let fixture = Fixture::on(mode, database, pool, |layer| layer).await;
        fixture
            .send(&ask("k"))
            .await
            .assert_problem(503, "unavailable");
        assert_eq!(fixture.runs(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn panic_leaves_no_effect_and_a_repeated_request_runs() {
    for mode in MODES {
        let fixture = Fixture::new(mode).await;
        let panicking = ask("k").with("x-size", "not a number");
        let sent = fixture
            .client
            .request(panicking.to(fixture.server.address))
            .await;
        assert!(sent.is_err(), "{mode:?}: {sent:?}");
        until("no claim is left", || async { fixture.claims().await == 0 }).await;
        fixture
            .send_until_settled(&ask("k"))
            .await
            .assert_run(201, 2);
    }
}
