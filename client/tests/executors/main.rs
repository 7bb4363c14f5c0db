//! Tests of every implementation of `Executor` on a real server: the connections and transactions
//! of tokio-postgres and deadpool-postgres, a client of bb8-postgres, and types of an application.

mod rules;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bb8_postgres::{PostgresConnectionManager, bb8};
use futures_util::future::join;
use idem_client::OpenTransaction;
use idem_client::{
    Claim, ClaimOptions, Destination, Effect, Error, Executor, MessageId, Row, claim, effects,
    is_claimed,
    lease::{Lease, acquire},
    send, try_claim, try_claim_batch, try_record,
};
use idem_testkit::{Database, proxy::Proxy};
use serde_json::json;
use tokio_postgres::{
    Client, NoTls,
    types::{ToSql, Type},
};
use uuid::Uuid;

/// An executor of an application. It counts the statements.
struct Counted<E> {
    inner: E,
    statements: AtomicUsize,
}

impl<E> Counted<E> {
    fn new(inner: E) -> Self {
        Self {
            inner,
            statements: AtomicUsize::new(0),
        }
    }

    fn statements(&self) -> usize {
        self.statements.load(Ordering::SeqCst)
    }
}

impl<E: Executor> Executor for Counted<E> {
    async fn fetch_all(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.statements.fetch_add(1, Ordering::SeqCst);
        self.inner.fetch_all(sql, parameters).await
    }
}

impl<E: OpenTransaction> OpenTransaction for Counted<E> {}

fn destination() -> Destination {
    Destination::new("client.executors").unwrap()
}

fn new_id() -> MessageId {
    Uuid::new_v4().into()
}

fn fact() -> Effect {
    Effect::json("client.facts", &json!({"n": 1})).unwrap()
}

async fn bb8_pool(url: &str) -> bb8::Pool<PostgresConnectionManager<NoTls>> {
    let manager = PostgresConnectionManager::new_from_stringlike(url, NoTls).unwrap();
    bb8::Pool::builder()
        .max_size(2)
        .build(manager)
        .await
        .unwrap()
}

/// Claims a message through a connection, by completing its lease. The functions that claim need an
/// open transaction, so they do not accept a connection.
///
/// Invariant: the effects of a completion are visible after COMMIT only, and the second acquisition
/// is a duplicate.
async fn assert_connection_claims_once(connection: &impl Executor) {
    let (id, to) = (new_id(), destination());
    let lease = acquire(connection, &id, &to, Duration::from_secs(30)).await;
    let Ok(Lease::Acquired(held)) = lease else {
        panic!("a new message: {lease:?}");
    };
    for (end, committed) in [("ROLLBACK", false), ("COMMIT", true)] {
        connection.fetch_all("BEGIN", &[]).await.unwrap();
        let ids = held.complete(connection, &[fact()]).await.unwrap();
        connection.fetch_all(end, &[]).await.unwrap();
        assert_eq!(
            is_claimed(connection, &id, &to).await.unwrap(),
            committed,
            "{end}"
        );
        let recorded = effects(connection, &id, &to).await.unwrap();
        let recorded: Vec<_> = recorded.iter().map(|effect| effect.message_id).collect();
        assert_eq!(recorded, if committed { ids } else { vec![] }, "{end}");
    }
    let again = acquire(connection, &id, &to, Duration::from_secs(30)).await;
    assert!(matches!(again, Ok(Lease::Duplicate)), "{again:?}");
}

/// Claims a message in a transaction that the caller rolls back or commits. Returns the ids of the
/// effects.
async fn claim_and_record(tx: &impl OpenTransaction, id: &MessageId) -> Vec<Uuid> {
    let claim = try_claim(tx, id, &destination()).await.unwrap();
    let Claim::New(claimed) = claim else {
        panic!("a new message: {claim:?}");
    };
    claimed.record_effects(&[fact()]).await.unwrap()
}

/// Asserts that each function that claims this message reports a duplicate, and that the message
/// ids of its recorded effects are `ids`.
async fn assert_duplicate(tx: &impl OpenTransaction, id: &MessageId, ids: &[Uuid]) {
    let to = destination();
    let options = ClaimOptions::default();
    assert!(try_claim(tx, id, &to).await.unwrap().is_duplicate());
    assert!(claim(tx, id, &to, &options).await.unwrap().is_duplicate());
    let batch = try_claim_batch(tx, std::slice::from_ref(id), &to).await;
    assert!(batch.unwrap()[0].is_duplicate());
    let late = try_record(tx, id, &to, &[fact()]).await.unwrap();
    assert!(late.is_duplicate());
    let recorded = effects(tx, id, &to).await.unwrap();
    assert!(recorded.iter().map(|effect| &effect.message_id).eq(ids));
}

/// Asserts that nothing of a transaction that was rolled back is visible.
async fn assert_untouched(connection: &impl Executor, id: &MessageId) {
    let to = destination();
    assert!(!is_claimed(connection, id, &to).await.unwrap());
    assert_eq!(effects(connection, id, &to).await.unwrap(), []);
}

#[tokio::test]
async fn connection_of_each_pool_claims_once() {
    let database = Database::create();
    let client = database.client().await;
    assert_connection_claims_once(&client).await;
    let counted = Counted::new(&client);
    assert_connection_claims_once(&counted).await;
    assert_eq!(counted.statements(), 12);
    assert_connection_claims_once(&Arc::new(client)).await;

    let pooled = database.pool(1).get().await.unwrap();
    assert_connection_claims_once(&pooled).await;
    assert_connection_claims_once(&*pooled).await;
    assert_connection_claims_once(&Counted::new(pooled)).await;

    let pool = bb8_pool(&database.url()).await;
    let pooled = pool.get().await.unwrap();
    assert_connection_claims_once(&*pooled).await;
}

/// The same steps for a transaction of each type: claim and roll back, claim and commit, and find
/// the duplicate. The types have no trait in common that begins a transaction.
macro_rules! assert_transactions_claim_once {
    ($connection:expr, $wrap:expr) => {
        let id = new_id();
        let tx = $wrap($connection.transaction().await.unwrap());
        claim_and_record(&tx, &id).await;
        drop(tx);
        assert_untouched(&$connection, &id).await;

        let tx = $connection.transaction().await.unwrap();
        let ids = claim_and_record(&$wrap(&tx), &id).await;
        tx.commit().await.map_err(Error::of_commit).unwrap();

        let tx = $connection.transaction().await.unwrap();
        assert_duplicate(&$wrap(&tx), &id, &ids).await;
        tx.rollback().await.unwrap();
    };
}

#[tokio::test]
async fn transaction_of_each_pool_claims_once() {
    let database = Database::create();
    let mut client = database.client().await;
    assert_transactions_claim_once!(client, |tx| tx);
    assert_transactions_claim_once!(client, Counted::new);

    let mut pooled = database.pool(1).get().await.unwrap();
    assert_transactions_claim_once!(pooled, |tx| tx);
    assert_transactions_claim_once!(pooled, Counted::new);

    let pool = bb8_pool(&database.url()).await;
    let mut pooled = pool.get().await.unwrap();
    let client: &mut Client = &mut pooled;
    assert_transactions_claim_once!(client, |tx| tx);
}

/// Goal: a message that is sent in the transaction of the caller is rolled back with it.
#[tokio::test]
async fn sent_message_is_rolled_back_with_its_transaction() {
    let database = Database::create();
    let mut client = database.client().await;
    let outbox = async |client: &Client| -> i64 {
        let sql = "SELECT count(*) FROM (TABLE idem.outbox_0 UNION ALL TABLE idem.outbox_1 \
                   UNION ALL TABLE idem.outbox_2 UNION ALL TABLE idem.outbox_3) e";
        client.query_one(sql, &[]).await.unwrap().get(0)
    };
    for (commits, expected) in [(false, 0), (true, 1)] {
        let tx = client.transaction().await.unwrap();
        send(&Counted::new(&tx), &fact()).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(outbox(&client).await, expected);
    }
}

/// Invariant: the first poll of a call sends its statement, so two calls share a round trip.
#[tokio::test]
async fn two_calls_share_a_round_trip() {
    async fn round_trips(proxy: &Proxy, executor: &impl Executor) -> usize {
        let (id, to) = (new_id(), destination());
        let before = proxy.turns();
        let (first, second) =
            join(is_claimed(executor, &id, &to), effects(executor, &id, &to)).await;
        assert!(!first.unwrap());
        assert_eq!(second.unwrap(), []);
        proxy.turns() - before
    }

    let database = Database::create();
    let proxy = Proxy::to(&database).await;
    let client = proxy.client().await;
    // The first statement looks up the types of the columns.
    round_trips(&proxy, &client).await;
    assert_eq!(round_trips(&proxy, &client).await, 1);
    assert_eq!(round_trips(&proxy, &Counted::new(&client)).await, 1);
    assert_eq!(round_trips(&proxy, &Box::new(client)).await, 1);

    let pooled = proxy.pool(1).get().await.unwrap();
    round_trips(&proxy, &pooled).await;
    assert_eq!(round_trips(&proxy, &pooled).await, 1);
}
