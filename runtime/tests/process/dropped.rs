//! When a future is dropped, its statement at the server ends and its locks are released.

use std::{
    future::{Future, pending},
    time::{Duration, Instant},
};

use deadpool_postgres::{Manager, Pool};
use futures_util::{FutureExt, future::join_all};
use idem_runtime::{
    Error, Handled, Idem, Message, Processed, Tx, lease::LeaseContext, policy::Style,
};
use idem_testkit::{Database, standby::Standby, until};
use tokio_postgres::NoTls;

use crate::fixtures::{Fixture, idem, message, work};

/// The longest time to wait for a state. The statements of the handlers run much longer than this.
const SOON: Duration = Duration::from_secs(10);
const SLEEP: &str = "SELECT pg_sleep(600)";
const LOCK: &str = "LOCK TABLE work";

/// Counts the client sessions that execute a statement or are in a transaction.
const BUSY: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND application_name <> 'holder' AND state <> 'idle'";

async fn until_busy(fixture: &Fixture, count: i64) {
    let started = Instant::now();
    loop {
        let busy = fixture.count(BUSY).await;
        if busy == count {
            return;
        }
        assert!(
            started.elapsed() < SOON,
            "{busy} sessions are busy at the server, not {count}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Drops the future while its statement runs, and waits until the server has ended the statement.
async fn drop_while_it_runs(fixture: &Fixture, work: impl Future<Output: std::fmt::Debug>) {
    tokio::select! {
        biased;
        ended = work => panic!("the future did not wait: {ended:?}"),
        () = async {
            until_busy(fixture, 1).await;
            until_waiting(fixture).await;
        } => {}
    }
    until_busy(fixture, 0).await;
}

/// Waits until a statement sleeps or waits for a lock.
async fn until_waiting(fixture: &Fixture) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')";
    let started = Instant::now();
    while fixture.count(waiting).await == 0 {
        assert!(started.elapsed() < SOON, "no statement waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns a connection with a transaction that locks a table. The lock is held until the
/// connection is dropped.
async fn locked(fixture: &Fixture, table: &str) -> tokio_postgres::Client {
    let holder = fixture.database.client().await;
    let lock = format!("SET application_name = 'holder'; BEGIN; LOCK TABLE {table}");
    holder.batch_execute(&lock).await.unwrap();
    holder
}

fn running(
    sql: &'static str,
) -> impl Fn(Tx, Message) -> std::pin::Pin<Box<dyn Future<Output = Handled> + Send>> {
    move |tx, _| {
        Box::pin(async move {
            tx.batch_execute(sql).await?;
            Ok(vec![])
        })
    }
}

async fn assert_free(fixture: &Fixture, idem: &Idem, message: &Message) {
    let processed = tokio::time::timeout(SOON, idem.process(&fixture.pool, message, work)).await;
    assert!(
        matches!(processed, Ok(Ok(Processed::New { .. }))),
        "{processed:?}"
    );
}

/// Goal: when a future is dropped, its claim and its locks are released at once. This holds for a
/// handler that waits for a long statement and for a handler that waits for a lock.
#[tokio::test]
async fn statement_of_a_dropped_handler_ends_at_the_server() {
    let fixture = Fixture::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let idem = idem(|policy| policy.style = style);
        for sql in [SLEEP, LOCK] {
            let holder = match sql {
                LOCK => Some(locked(&fixture, "work").await),
                _ => None,
            };
            let message = message();
            let processing = idem.process(&fixture.pool, &message, running(sql));
            drop_while_it_runs(&fixture, processing).await;
            drop(holder);
            assert_free(&fixture, &idem, &message).await;
        }
    }
}

/// Goal: the statement of a dropped future ends although the session has changed its role at login.
/// The backend belongs to the login role, and the new role has no right to cancel it.
#[tokio::test]
async fn statement_of_a_login_with_another_role_ends() {
    let fixture = Fixture::new().await;
    let database = &fixture.database;
    let (login, role) = (
        format!("login_of_{}", database.name()),
        format!("role_of_{}", database.name()),
    );
    let roles = format!(
        "CREATE ROLE {role}; CREATE ROLE {login} LOGIN IN ROLE {role};
         ALTER ROLE {login} SET role = {role};
         SELECT idem_grant('{role}', 'consumer')"
    );
    database.psql(&roles);
    let mut config: tokio_postgres::Config = database.url().parse().unwrap();
    config.user(&login);
    let pool = Pool::builder(Manager::new(config, NoTls))
        .max_size(2)
        .build()
        .unwrap();
    let (idem, message) = (Idem::new(), message());
    drop_while_it_runs(&fixture, idem.process(&pool, &message, running(SLEEP))).await;
    assert_free(&fixture, &idem, &message).await;
}

#[tokio::test]
async fn statement_of_a_dropped_batch_ends_at_the_server() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    let messages = [message(), message()];
    drop_while_it_runs(
        &fixture,
        idem.process_batch(&fixture.pool, &messages, running(SLEEP)),
    )
    .await;
    assert_free(&fixture, &idem, &messages[0]).await;
}

/// Goal: when the deadline of a handler passes, the handler drops its statement and fails. The
/// statement ends at the server.
#[tokio::test]
async fn statement_past_the_deadline_of_a_handler_ends() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    let message = message();
    let handler = async |tx: Tx, _: Message| -> Handled {
        tokio::time::timeout(Duration::from_millis(200), tx.batch_execute(SLEEP)).await??;
        Ok(vec![])
    };
    let processed = idem.process(&fixture.pool, &message, handler).await;
    assert!(matches!(processed, Err(Error::Handler(_))), "{processed:?}");
    until_busy(&fixture, 0).await;
    assert_free(&fixture, &idem, &message).await;
}

/// Goal: a dropped request for a lease, which waits for a lock, also ends at the server.
#[tokio::test]
async fn dropped_request_for_a_lease_ends_at_the_server() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    let message = message();
    let holder = locked(&fixture, "idem.pending_0").await;
    let handler = async |_: LeaseContext, _: Message| -> Handled { pending().await };
    let leasing = idem.process_leased(&fixture.pool, &message, handler);
    drop_while_it_runs(&fixture, leasing).await;
    drop(holder);
    assert_free(&fixture, &idem, &message).await;
}

/// Goal: a COMMIT and a single statement that wait for the standby continue after their future is
/// dropped. Invariant: I4.
#[tokio::test]
async fn i4_dropped_commit_that_waits_for_its_standby_continues() {
    let fixture = Fixture::on(Database::create_alone("standby-away")).await;
    let idem = Idem::new();
    // The first claim of a destination blocks other claims until its transaction ends, so claim one
    // message before the test.
    assert_free(&fixture, &idem, &message()).await;
    let (committed, leased) = (message(), message());
    let standby = Standby::away(&fixture.database).await;
    let commit = async { drop(idem.process(&fixture.pool, &committed, work).await) };
    standby.drop_while_it_commits(commit).await;
    let handler = async |_: LeaseContext, _: Message| -> Handled { pending().await };
    let statement = async { drop(idem.process_leased(&fixture.pool, &leased, handler).await) };
    standby.drop_while_it_commits(statement).await;
    fixture.assert_untouched(&committed).await;

    standby.returns().await;
    fixture.assert_done_once(&committed).await;
    assert_eq!(fixture.count("SELECT count(*) FROM idem.leases").await, 1);
}

/// Goal: other code sent a COMMIT and returned the connection to the pool. The COMMIT continues
/// although the next user of the connection is dropped. Invariant: I4.
#[tokio::test]
async fn i4_commit_before_a_dropped_transaction_continues() {
    let fixture = Fixture::on(Database::create_alone("standby-away-before")).await;
    let (idem, message) = (Idem::new(), message());
    assert_free(&fixture, &idem, &message).await;
    let pool = fixture.database.pool(1);
    let object = pool.get().await.unwrap();
    object
        .batch_execute("BEGIN; INSERT INTO work VALUES ('own')")
        .await
        .unwrap();
    let standby = Standby::away(&fixture.database).await;
    let both = async {
        assert!(object.batch_execute("COMMIT").now_or_never().is_none());
        drop(object);
        drop(idem.process(&pool, &message, work).await);
    };
    standby.drop_while_it_commits(both).await;
    standby.returns().await;
    assert_eq!(
        fixture
            .count("SELECT count(*) FROM work WHERE id = 'own'")
            .await,
        1
    );
}

/// Goal: while all server connections of a pooler are in use, the client cannot find out that there
/// is a pooler. Dropped handlers must still free the connections of the pooler.
#[tokio::test]
async fn dropped_handlers_free_an_exhausted_pooler() {
    let fixture = Fixture::new().await;
    let name = fixture.database.name();
    fixture.database.psql(&format!(
        "ALTER DATABASE {name} SET client_connection_check_interval = '1s'"
    ));
    let pooler = fixture.database.small_pooler(2);
    let manager = Manager::new(pooler.connection_string_to(name).parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).max_size(4).build().unwrap();
    let (idem, messages) = (Idem::new(), [message(), message()]);
    // The first claim of a destination blocks other claims until its transaction ends, so claim one
    // message before the test.
    assert_free(&fixture, &idem, &message()).await;
    let both = join_all(
        messages
            .iter()
            .map(|message| idem.process(&pool, message, running(SLEEP))),
    );
    let sleeping = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'PgSleep'";
    tokio::select! {
        biased;
        ended = both => panic!("the futures did not wait: {ended:?}"),
        () = until("both statements sleep", async || fixture.count(sleeping).await == 2) => {}
    }
    until_busy(&fixture, 0).await;
    let processed = tokio::time::timeout(SOON, idem.process(&pool, &messages[0], work)).await;
    assert!(
        matches!(processed, Ok(Ok(Processed::New { .. }))),
        "{processed:?}"
    );
}
