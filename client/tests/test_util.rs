//! Tests of the helpers for the tests of applications, on a real server.

use std::thread;

use futures_util::future::join;
use idem_client::{
    Claim, Destination, Error, ErrorKind, MessageId, begin_and_claim,
    test_util::{Crash, CrashProxy, TestDatabase, TestError, force_duplicate},
};
use idem_testkit::{Database, in_time, until};
use tokio_postgres::{Client, Config, error::SqlState};
use uuid::Uuid;

fn destination() -> Destination {
    Destination::new("client.test-util").unwrap()
}

fn new_id() -> MessageId {
    Uuid::new_v4().into()
}

/// Returns a database of the server that all tests share, and the connection string that an
/// application would pass to [`TestDatabase::create`].
fn server() -> (Database, String) {
    let database = Database::create();
    let url = database.direct_url();
    (database, url)
}

/// Returns the number of databases with this name.
fn databases(server: &Database, name: &str) -> String {
    let sql = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    server.psql(&sql).trim().to_owned()
}

/// A test database with a table, and a proxy in front of it.
struct Fixture {
    observer: Client,
    proxy: CrashProxy,
    // This field is declared last, so that the database is dropped last.
    _database: TestDatabase,
}

impl Fixture {
    async fn new(url: &str) -> Self {
        let database = TestDatabase::create(url).await.unwrap();
        let observer = database.connect().await.unwrap();
        observer
            .batch_execute("CREATE TABLE work (id int)")
            .await
            .unwrap();
        Self {
            observer,
            proxy: CrashProxy::start(&database.config()).await.unwrap(),
            _database: database,
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        self.observer.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Returns the number of committed rows, after all other sessions have ended.
    async fn committed(&self) -> i64 {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                      AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        until("the other sessions end", async || {
            self.count(others).await == 0
        })
        .await;
        self.count("SELECT count(*) FROM work").await
    }
}

/// The ways in which a client sends COMMIT.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// The driver's transaction: a simple query.
    Driver,
    /// The last statement of a simple query.
    LastInAQuery,
    /// The extended protocol, with the unnamed statement.
    Extended,
    /// The extended protocol, with a statement that was prepared before the transaction.
    Prepared,
}

const FORMS: [Form; 4] = [
    Form::Driver,
    Form::LastInAQuery,
    Form::Extended,
    Form::Prepared,
];

/// Inserts a row in a transaction. `before_commit` is called directly before COMMIT.
async fn insert(
    client: &mut Client,
    form: Form,
    before_commit: impl FnOnce(),
) -> Result<(), tokio_postgres::Error> {
    const INSERT: &str = "INSERT INTO work VALUES (1)";
    match form {
        Form::Driver => {
            let tx = client.transaction().await?;
            tx.batch_execute(INSERT).await?;
            before_commit();
            tx.commit().await
        }
        Form::LastInAQuery => {
            client.batch_execute("BEGIN").await?;
            before_commit();
            client.batch_execute(&format!("{INSERT}; COMMIT;")).await
        }
        Form::Extended => {
            client.batch_execute("BEGIN").await?;
            client.batch_execute(INSERT).await?;
            before_commit();
            client.query_typed("COMMIT", &[]).await.map(drop)
        }
        Form::Prepared => {
            let commit = client.prepare("COMMIT").await?;
            client.batch_execute("BEGIN").await?;
            client.batch_execute(INSERT).await?;
            before_commit();
            client.execute(&commit, &[]).await.map(drop)
        }
    }
}

/// Goal: a test database has the extension. When its value is dropped, the database is dropped too,
/// also while sessions are open.
#[tokio::test]
async fn test_database_is_dropped_with_its_value() {
    let (server, url) = server();
    let database = TestDatabase::create(&url).await.unwrap();
    let name = database.name().to_owned();
    let mut client = database.connect().await.unwrap();
    assert!(
        begin_and_claim(&mut client, &new_id(), &destination())
            .await
            .unwrap()
            .is_new()
    );
    let read: Config = database.connection_string().parse().unwrap();
    assert_eq!(read.get_dbname(), Some(&*name));
    assert_eq!(databases(&server, &name), "1");
    drop(database);
    assert_eq!(databases(&server, &name), "0");
    assert!(client.batch_execute("SELECT 1").await.is_err());

    let database = TestDatabase::create(&url).await.unwrap();
    let name = database.name().to_owned();
    let _client = database.connect().await.unwrap();
    database.remove().await.unwrap();
    assert_eq!(databases(&server, &name), "0");
}

#[test]
fn test_database_is_dropped_after_a_panic() {
    let (server, url) = server();
    let test = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let database = TestDatabase::create(&url).await.unwrap();
            let client = database.connect().await.unwrap();
            client.batch_execute("BEGIN").await.unwrap();
            std::panic::panic_any(database.name().to_owned());
        });
    });
    let name = test.join().unwrap_err().downcast::<String>().unwrap();
    assert!(name.starts_with("idem_test_"), "{name}");
    assert_eq!(databases(&server, &name), "0");
}

#[tokio::test]
async fn failed_creation_returns_its_cause() {
    let (server, url) = server();
    let failed = async |url: &str| TestDatabase::create(url).await.unwrap_err();
    let error = failed("no such setting").await;
    assert!(matches!(error, TestError::ConnectionString(_)), "{error}");
    assert!(matches!(failed("user=postgres").await, TestError::NoHost));
    let error = failed("host=127.0.0.1 port=1 user=postgres").await;
    assert!(matches!(error, TestError::Connect(_)), "{error}");

    server.psql("CREATE ROLE test_util_plain LOGIN; CREATE ROLE test_util_creator LOGIN CREATEDB");
    let (before, after) = url.split_once("user=postgres").unwrap();
    let error = failed(&format!("{before}user=test_util_plain{after}")).await;
    assert!(matches!(error, TestError::CreateDatabase { .. }), "{error}");
    let error = failed(&format!("{before}user=test_util_creator{after}")).await;
    let TestError::CreateExtension(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    // `create` has dropped the database that it created without the extension.
    let sql = "SELECT count(*) FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba \
               WHERE r.rolname = 'test_util_creator'";
    assert_eq!(server.psql(sql).trim(), "0");
}

#[tokio::test]
async fn forced_duplicate_is_a_duplicate() {
    let (_server, url) = server();
    let database = TestDatabase::create(&url).await.unwrap();
    let mut client = database.connect().await.unwrap();
    let (id, to) = (new_id(), destination());
    for _ in 0..2 {
        force_duplicate(&mut client, &id, &to).await.unwrap();
    }
    let mut other = database.connect().await.unwrap();
    let elsewhere = Destination::new("client.elsewhere").unwrap();
    for (to, is_duplicate) in [(&to, true), (&elsewhere, false)] {
        let claim = begin_and_claim(&mut other, &id, to).await.unwrap();
        assert_eq!(claim.is_duplicate(), is_duplicate, "{to}");
    }
}

/// Invariant: after a crash before COMMIT the server has rolled back, whatever the form of COMMIT.
#[tokio::test]
async fn crash_before_commit_rolls_back() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    for (number, form) in FORMS.into_iter().enumerate() {
        let mut client = fixture.proxy.connect().await.unwrap();
        let crash = || fixture.proxy.crash_once(Crash::BeforeCommit);
        let ended = in_time(insert(&mut client, form, crash)).await;
        let error = ended.expect_err("the connection is lost");
        assert_eq!(ErrorKind::of(&error), ErrorKind::ConnectionLost, "{form:?}");
        assert_eq!(fixture.proxy.crashes(), number + 1, "{form:?}");
        assert_eq!(fixture.committed().await, 0, "{form:?}");
    }
}

/// Invariant: after a crash after COMMIT the server has committed, whatever the form of COMMIT.
#[tokio::test]
async fn crash_after_commit_commits() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    for (number, form) in (1_u32..).zip(FORMS) {
        let mut client = fixture.proxy.connect().await.unwrap();
        let crash = || fixture.proxy.crash_once(Crash::AfterCommit);
        let ended = in_time(insert(&mut client, form, crash)).await;
        let error = ended.expect_err("the connection is lost");
        assert_eq!(ErrorKind::of(&error), ErrorKind::ConnectionLost, "{form:?}");
        assert_eq!(fixture.committed().await, i64::from(number), "{form:?}");
    }
    assert_eq!(fixture.proxy.crashes(), FORMS.len());
}

/// Goal: the client reports an ambiguous commit for a crash before COMMIT and for a crash after
/// COMMIT. The next delivery shows which of the two happened. This is the example of the
/// documentation.
#[tokio::test]
async fn next_claim_after_a_crash_shows_the_result() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let to = destination();
    for (crash, is_duplicate) in [(Crash::BeforeCommit, false), (Crash::AfterCommit, true)] {
        let id = new_id();
        let mut client = fixture.proxy.connect().await.unwrap();
        let Claim::New(tx) = begin_and_claim(&mut client, &id, &to).await.unwrap() else {
            panic!("a new id is a duplicate");
        };
        fixture.proxy.crash_once(crash);
        let error = in_time(tx.commit()).await.unwrap_err();
        assert!(matches!(error, Error::AmbiguousCommit(_)), "{error:?}");
        let mut client = fixture.proxy.connect().await.unwrap();
        let claim = begin_and_claim(&mut client, &id, &to).await.unwrap();
        assert_eq!(claim.is_duplicate(), is_duplicate, "{crash:?}");
    }
}

/// Goal: a crash breaks one connection, and the other connections work. After a permanent crash,
/// the proxy accepts no connection.
#[tokio::test]
async fn crash_affects_one_connection_unless_for_good() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let mut first = fixture.proxy.connect().await.unwrap();
    let mut second = fixture.proxy.connect().await.unwrap();
    let crash = || fixture.proxy.crash_once(Crash::BeforeCommit);
    assert!(insert(&mut first, Form::Driver, crash).await.is_err());
    insert(&mut second, Form::Driver, || {}).await.unwrap();

    let crash = || fixture.proxy.crash_for_good(Crash::AfterCommit);
    assert!(insert(&mut second, Form::Driver, crash).await.is_err());
    let closed = fixture.proxy.connect().await;
    assert!(matches!(closed, Err(TestError::Connect(_))));
    fixture.proxy.recover();
    let mut third = fixture.proxy.connect().await.unwrap();
    insert(&mut third, Form::Driver, || {}).await.unwrap();
    drop(third);
    assert_eq!(fixture.committed().await, 3);
    assert_eq!(fixture.proxy.crashes(), 2);
}

/// Goal: the server rolls back when it executes COMMIT in a failed transaction. The proxy does not
/// treat this as a commit, and crashes after the next real commit.
#[tokio::test]
async fn rollback_in_place_of_commit_keeps_the_request() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let mut client = fixture.proxy.connect().await.unwrap();
    fixture.proxy.crash_once(Crash::AfterCommit);
    client.batch_execute("BEGIN").await.unwrap();
    assert!(client.batch_execute("SELECT 1 / 0").await.is_err());
    // The driver reports success.
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(fixture.proxy.crashes(), 0);
    assert!(insert(&mut client, Form::Driver, || {}).await.is_err());
    assert_eq!(fixture.proxy.crashes(), 1);
}

/// Goal: messages of any size pass unchanged, in both directions at the same time.
#[tokio::test]
async fn large_messages_pass_unchanged() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let client = fixture.proxy.connect().await.unwrap();
    let text = "COMMIT; ".repeat(1 << 20);
    let sql = "SELECT $1::text";
    let echo = async || -> String {
        let row = client.query_one(sql, &[&text]).await.unwrap();
        row.get(0)
    };
    let (first, second) = in_time(join(echo(), echo())).await;
    assert!(first == text && second == text);
    assert_eq!(fixture.proxy.crashes(), 0);
}

/// Goal: a cancelled statement fails with 57014, and the connection works.
#[tokio::test]
async fn cancelled_statement_leaves_the_connection_usable() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let client = fixture.proxy.connect().await.unwrap();
    fixture.proxy.cancel_once("BEGIN");
    let error = client.batch_execute("BEGIN").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!(fixture.proxy.cancellations(), 1);
    client.batch_execute("BEGIN; ROLLBACK").await.unwrap();
}

/// Goal: a pipelined pair of statements is one round trip, and two awaited statements are two.
#[tokio::test]
async fn round_trips_are_counted() {
    let (_server, url) = server();
    let fixture = Fixture::new(&url).await;
    let client = fixture.proxy.connect().await.unwrap();
    let select = || client.batch_execute("SELECT 1");
    let before = fixture.proxy.round_trips();
    let (first, second) = join(select(), select()).await;
    first.and(second).unwrap();
    assert_eq!(fixture.proxy.round_trips() - before, 1);
    for _ in 0..2 {
        select().await.unwrap();
    }
    assert_eq!(fixture.proxy.round_trips() - before, 3);
}
