//! Statements are prepared only on connections that lead to the server itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod};
use futures_util::{FutureExt, future::BoxFuture};
use idem_brokers::PgBouncer;
use idem_client::Effect;
use idem_runtime::{Handled, Idem, Message, Processed, Tx};
use idem_testkit::Database;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, NoTls};
use uuid::Uuid;

/// Connects to the server itself, and later through a pooler.
#[derive(Clone)]
struct Switch {
    direct: Config,
    pooled: Config,
    is_pooled: Arc<AtomicBool>,
}

impl Connect for Switch {
    fn connect(
        &self,
        _: &Config,
    ) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let config = match self.is_pooled.load(SeqCst) {
            true => &self.pooled,
            false => &self.direct,
        };
        async move {
            let (client, connection) = config.connect(NoTls).await?;
            let served = tokio::spawn(async { drop(connection.await) });
            Ok((client, served))
        }
        .boxed()
    }
}

struct Fixture {
    database: Database,
    bouncer: PgBouncer,
    observer: Client,
}

impl Fixture {
    async fn new() -> Self {
        let database = Database::create();
        let observer = database.client().await;
        observer
            .batch_execute("CREATE TABLE work (id text)")
            .await
            .unwrap();
        Self {
            bouncer: PgBouncer::start_with_pool(database.cluster(), database.name(), 2).unwrap(),
            database,
            observer,
        }
    }

    fn switch(&self) -> Switch {
        Switch {
            direct: self.database.direct_url().parse().unwrap(),
            pooled: self.bouncer.connection_string().parse().unwrap(),
            is_pooled: Arc::new(AtomicBool::new(false)),
        }
    }

    async fn assert_each_once(&self, messages: i64) {
        let sql = "SELECT count(*), count(DISTINCT id), (SELECT count(*) FROM idem.outbox_row)
                     FROM work";
        let row = self.observer.query_one(sql, &[]).await.unwrap();
        let found: (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(found, (messages, messages, messages));
    }
}

fn pool(switch: &Switch, size: usize) -> Pool {
    let manager = Manager::from_connect(switch.direct.clone(), switch.clone(), Default::default());
    Pool::builder(manager).max_size(size).build().unwrap()
}

/// The statements of idem that are prepared in the sessions of the handlers.
type Prepared = Mutex<Vec<i64>>;

async fn handle(tx: Tx, message: Message, prepared: &Prepared) -> Handled {
    let sql = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%idem\\_%'";
    let found: i64 = tx.query_typed_one(sql, &[]).await?.get(0);
    prepared.lock().unwrap().push(found);
    tx.execute_typed(
        "INSERT INTO work VALUES ($1)",
        &[(&message.message_id(), tokio_postgres::types::Type::TEXT)],
    )
    .await?;
    Ok(vec![Effect::json("facts", &1)?])
}

async fn process(idem: &Idem, pool: &Pool, prepared: &Prepared) {
    let message = Message::new("poolers.tests", "{}").with_message_id(Uuid::new_v4().to_string());
    let processed = idem
        .process(pool, &message, |tx, message| handle(tx, message, prepared))
        .await;
    assert!(
        matches!(processed, Ok(Processed::New { .. })),
        "{processed:?}"
    );
}

/// The first message finds out that there is no pooler, and prepares the statement for its effects.
/// The claim of the second one is prepared too.
#[tokio::test]
async fn statements_are_prepared_without_a_pooler() {
    let fixture = Fixture::new().await;
    let (idem, prepared) = (Idem::new(), Prepared::default());
    let pool = pool(&fixture.switch(), 1);
    for _ in 0..4 {
        process(&idem, &pool, &prepared).await;
    }
    assert_eq!(*prepared.lock().unwrap(), [0, 2, 2, 2]);
    fixture.assert_each_once(4).await;
}

/// What is known about a pool ends with it: a new pool can get the memory of a dropped one.
#[tokio::test]
async fn new_pool_does_not_inherit_the_pooler_of_a_dropped_one() {
    let fixture = Fixture::new().await;
    let idem = Idem::new();
    for _ in 0..20 {
        let (switch, prepared) = (fixture.switch(), Prepared::default());
        switch.is_pooled.store(true, SeqCst);
        process(&idem, &pool(&switch, 1), &prepared).await;
        switch.is_pooled.store(false, SeqCst);
        let direct = pool(&switch, 1);
        for _ in 0..2 {
            process(&idem, &direct, &prepared).await;
        }
        assert_eq!(*prepared.lock().unwrap(), [0, 0, 2]);
    }
}

/// I1, I2: behind a pooler no statement is prepared, whatever the pooler does with it.
#[tokio::test]
async fn i1_no_statement_is_prepared_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let (idem, prepared) = (Idem::new(), Prepared::default());
    let switch = fixture.switch();
    switch.is_pooled.store(true, SeqCst);
    let pools = [pool(&switch, 4), pool(&switch, 4)];
    let work = (0..40).map(|n| process(&idem, &pools[n % 2], &prepared));
    futures_util::future::join_all(work).await;
    assert_eq!(*prepared.lock().unwrap(), [0; 40]);
    fixture.assert_each_once(40).await;
}

/// I1, I2: with `prepared_statements(true)`, each claim is prepared behind a pooler that keeps
/// prepared statements (PgBouncer 1.24 or later). Behind another pooler messages fail, and have no
/// effect.
#[tokio::test]
async fn i1_kept_prepared_statements_work_behind_a_pooler() {
    let fixture = Fixture::new().await;
    let idem = Idem::builder().prepared_statements(true).build().unwrap();
    let switch = fixture.switch();
    switch.is_pooled.store(true, SeqCst);
    let pools = [pool(&switch, 4), pool(&switch, 4)];
    // How often each session of the server has executed a prepared claim.
    let executed: Mutex<HashMap<i32, i64>> = Mutex::default();
    let work = (0..40).map(async |n: usize| {
        let message =
            Message::new("poolers.tests", "{}").with_message_id(Uuid::new_v4().to_string());
        idem.process(&pools[n % 2], &message, async |tx: Tx, message| {
            let sql = "SELECT pg_backend_pid(), sum(generic_plans + custom_plans)::int8
                         FROM pg_prepared_statements WHERE statement LIKE '%idem\\_claim%'";
            let row = tx.query_typed_one(sql, &[]).await?;
            let (session, claims) = (row.get(0), row.get::<_, Option<i64>>(1).unwrap_or_default());
            {
                let mut executed = executed.lock().unwrap();
                let most = executed.entry(session).or_default();
                *most = claims.max(*most);
            }
            handle(tx, message, &Prepared::default()).await
        })
        .await
    });
    let results = futures_util::future::join_all(work).await;
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    let errors: Vec<_> = errors.collect();
    if fixture.bouncer.keeps_prepared_statements().unwrap() {
        assert!(errors.is_empty(), "{errors:?}");
        let executed: i64 = executed.lock().unwrap().values().sum();
        assert_eq!(executed, 40, "claims that were prepared");
    }
    for error in &errors {
        // A statement that the session does not have, or has already.
        let state = error.sqlstate().map(|state| state.code().to_owned());
        assert!(
            matches!(state.as_deref(), Some("26000" | "42P05")),
            "{error:?}"
        );
    }
    let processed = results.len() - errors.len();
    fixture.assert_each_once(processed as i64).await;
}

/// I1, I2: the pool had no pooler, has prepared its statements, and then gets one. The first
/// message is repeated, and nothing is prepared after that.
#[tokio::test]
async fn i1_pool_that_gets_a_pooler_prepares_no_more() {
    let fixture = Fixture::new().await;
    let (idem, prepared) = (Idem::new(), Prepared::default());
    let switch = fixture.switch();
    let pool = pool(&switch, 1);
    for _ in 0..2 {
        process(&idem, &pool, &prepared).await;
    }
    switch.is_pooled.store(true, SeqCst);
    drop(deadpool_postgres::Object::take(pool.get().await.unwrap()));
    let attempts = AtomicUsize::new(0);
    for _ in 0..3 {
        process(&idem, &pool, &prepared).await;
        attempts.fetch_add(1, SeqCst);
    }
    let found = prepared.lock().unwrap().clone();
    // The claim that was prepared behind the pooler stays in its session.
    assert_eq!(
        found,
        [0, 2, 1, 1, 1],
        "the handlers ran once for each message"
    );
    fixture.assert_each_once(5).await;
}

/// A pool that executes DISCARD ALL between two users loses the prepared statements. One message
/// fails for that, and is processed when it is delivered again. Nothing is prepared after that.
#[tokio::test]
async fn pool_that_discards_statements_fails_once() {
    let fixture = Fixture::new().await;
    let manager = Manager::from_config(
        fixture.switch().direct,
        NoTls,
        ManagerConfig {
            recycling_method: RecyclingMethod::Custom("DISCARD ALL".into()),
        },
    );
    let pool = Pool::builder(manager).max_size(1).build().unwrap();
    let (idem, prepared) = (Idem::new(), Prepared::default());
    let mut failures = Vec::new();
    for _ in 0..6 {
        let message =
            Message::new("poolers.tests", "{}").with_message_id(Uuid::new_v4().to_string());
        for delivery in 0.. {
            let handle = |tx, message| handle(tx, message, &prepared);
            match idem.process(&pool, &message, handle).await {
                Ok(processed) => {
                    assert!(matches!(processed, Processed::New { .. }), "{processed:?}");
                    break;
                }
                Err(error) => {
                    assert_eq!(delivery, 0, "{error:?}");
                    failures.push(error.sqlstate().map(|state| state.code().to_owned()));
                }
            }
        }
    }
    assert_eq!(failures, [Some("26000".to_owned())]);
    assert_eq!(prepared.lock().unwrap().last(), Some(&0));
    fixture.assert_each_once(6).await;
}

/// Why: a pooler that does not keep statements apart executes the statement of another client under
/// the same name, without an error.
#[tokio::test]
async fn pooler_executes_the_statement_of_another_client() {
    let fixture = Fixture::new().await;
    let connect = || async {
        let url = fixture.bouncer.connection_string();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let (first, other) = (connect().await, connect().await);
    first.batch_execute("BEGIN").await.unwrap();
    let own = first.prepare("SELECT 'own'").await.unwrap();
    let name = "SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT ''own'''";
    let name: String = first.query_typed_one(name, &[]).await.unwrap().get(0);
    // The other client gets another session, because that of the first client is in a transaction.
    other.batch_execute("BEGIN").await.unwrap();
    let foreign = format!("PREPARE {name} AS SELECT 'foreign'");
    other.batch_execute(&foreign).await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    let third = connect().await;
    third.batch_execute("BEGIN").await.unwrap();
    other.batch_execute("COMMIT").await.unwrap();
    let found: String = first.query_one(&own, &[]).await.unwrap().get(0);
    let expected = match fixture.bouncer.keeps_prepared_statements().unwrap() {
        true => "own",
        false => "foreign",
    };
    assert_eq!(found, expected);
}

/// I10: a pooler gives the session away after a ROLLBACK of the handler. The marked COMMIT then
/// reaches another session, and fails. A plain COMMIT would report success there.
#[tokio::test]
async fn i10_marked_commit_on_another_session_fails() {
    let fixture = Fixture::new().await;
    let connect = || async {
        let url = fixture.bouncer.connection_string();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let session = async |client: &Client| -> i32 {
        let sql = "SELECT pg_backend_pid()";
        client.query_typed_one(sql, &[]).await.unwrap().get(0)
    };
    let (first, other) = (connect().await, connect().await);
    let begin = "BEGIN; SELECT idem_forbid_commit(), idem_try_claim('m', 'poolers.tests')";
    first.batch_execute(begin).await.unwrap();
    let guarded = session(&first).await;
    first.batch_execute("ROLLBACK").await.unwrap();
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(session(&other).await, guarded, "the pooler gives it away");
    let error = first.batch_execute("COMMIT /* idem */").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "25P01", "{error:?}");
    first.batch_execute("COMMIT").await.unwrap();
    assert_ne!(session(&first).await, guarded);
}
