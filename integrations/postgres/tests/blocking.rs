//! Tests of the functions of the client without async, on a real server.

use std::time::Duration;

use idem_client::lease::{Lease, acquire};
use idem_client::{
    Claim, ClaimOptions, Destination, Effect, Error, ErrorKind, Executor, MessageId, claim,
    effects, try_claim,
};
use idem_postgres::{PostgresConnection, PostgresTransaction, commit, wait};
use idem_testkit::Database;
use idem_testkit::proxy::{Cut, Proxy};
use postgres::{Client, Config, NoTls};
use serde_json::json;
use tokio::runtime::Runtime;

fn destination() -> Destination {
    Destination::new("postgres.tests").unwrap()
}

fn id(text: &str) -> MessageId {
    MessageId::text(text).unwrap()
}

fn fact() -> Effect {
    Effect::json("postgres.facts", &json!({"n": 1})).unwrap()
}

fn connect(config: &str) -> Client {
    config.parse::<Config>().unwrap().connect(NoTls).unwrap()
}

fn is_claimed(observer: &mut Client, id: &MessageId) -> bool {
    let observer = PostgresConnection::new(observer);
    wait(idem_client::is_claimed(&observer, id, &destination())).unwrap()
}

/// Goal: the claim, the work and the effects commit or roll back together. Invariants: I1, I2.
#[test]
fn claim_commits_with_the_work() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let mut observer = connect(&database.url());
    client.batch_execute("CREATE TABLE work (id text)").unwrap();
    let (id, to) = (id("m"), destination());
    for end in ["roll back", "commit", "duplicate"] {
        let mut tx = client.transaction().unwrap();
        let idem = PostgresTransaction::new(&mut tx);
        let claim = wait(try_claim(&idem, &id, &to)).unwrap();
        assert_eq!(claim.is_duplicate(), end == "duplicate");
        if let Claim::New(claim) = claim {
            let work = "INSERT INTO work VALUES ('m')";
            idem.transaction().unwrap().execute(work, &[]).unwrap();
            let ids = wait(claim.record_effects(&[fact(), fact()])).unwrap();
            assert_eq!(ids.len(), 2);
        }
        match end {
            "roll back" => tx.rollback().unwrap(),
            _ => commit(tx).unwrap(),
        }
        let committed = end != "roll back";
        assert_eq!(is_claimed(&mut observer, &id), committed, "{end}");
        let work = observer
            .query_one("SELECT count(*) FROM work", &[])
            .unwrap();
        assert_eq!(work.get::<_, i64>(0), i64::from(committed), "{end}");
        let recorded = wait(effects(&PostgresConnection::new(&mut observer), &id, &to)).unwrap();
        assert_eq!(recorded.len(), 2 * usize::from(committed), "{end}");
    }
}

/// Goal: a duplicate reads the effects that the first execution recorded, in its own transaction:
/// the same ids, order and bytes. Invariant: I3.
#[test]
fn duplicate_reads_the_recorded_effects() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let (id, to) = (id("m"), destination());
    let bytes = [vec![0, 255, 10], vec![]];
    let facts = bytes
        .clone()
        .map(|bytes| Effect::bytes("postgres.bytes", bytes, "application/x-test"));
    let mut tx = client.transaction().unwrap();
    let idem = PostgresTransaction::new(&mut tx);
    let claim = wait(try_claim(&idem, &id, &to)).unwrap();
    let ids = wait(claim.into_new().unwrap().record_effects(&facts)).unwrap();
    commit(tx).unwrap();
    for _ in 0..2 {
        let mut tx = client.transaction().unwrap();
        let idem = PostgresTransaction::new(&mut tx);
        assert!(wait(try_claim(&idem, &id, &to)).unwrap().is_duplicate());
        let found = wait(effects(&idem, &id, &to)).unwrap();
        let found_ids: Vec<_> = found.iter().map(|effect| effect.message_id).collect();
        assert_eq!(found_ids, ids);
        let payloads: Vec<_> = found.iter().map(|effect| effect.payload.to_vec()).collect();
        assert_eq!(payloads, bytes);
        assert!(found.iter().all(|effect| effect.key.is_none()));
        commit(tx).unwrap();
    }
}

/// Goal: a claim with a fingerprint has the outcomes of `tokio-postgres`. Another fingerprint is a
/// mismatch.
#[test]
fn claim_has_its_outcomes() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let (id, to) = (id("m"), destination());
    let options = ClaimOptions::default().fingerprint([1, 2]);
    let mut tx = client.transaction().unwrap();
    let idem = PostgresTransaction::new(&mut tx);
    assert!(wait(claim(&idem, &id, &to, &options)).unwrap().is_new());
    let mut other = connect(&database.url());
    let mut other = other.transaction().unwrap();
    let other_idem = PostgresTransaction::new(&mut other);
    let busy = wait(claim(&other_idem, &id, &to, &options.clone().no_wait())).unwrap();
    assert!(matches!(busy, Claim::InProgress), "{busy:?}");
    commit(tx).unwrap();
    let again = wait(claim(&other_idem, &id, &to, &options)).unwrap();
    let has_time = |time: Option<_>| time.is_some();
    assert!(matches!(again, Claim::Duplicate { handled_at } if has_time(handled_at)));
    let differs = ClaimOptions::default().fingerprint([3]);
    let mismatch = wait(claim(&other_idem, &id, &to, &differs)).unwrap();
    assert!(matches!(mismatch, Claim::Mismatch { .. }), "{mismatch:?}");
}

/// Goal: a result that the client does not expect is an error, and not a wrong value. An error of
/// the server has its SQLSTATE.
#[test]
fn unexpected_result_is_an_error() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let idem = PostgresConnection::new(&mut client);
    for wrong in ["SELECT 1 WHERE false", "VALUES (1), (2)"] {
        let error = wait(idem.fetch_one(wrong, &[])).unwrap_err();
        assert!(matches!(error, Error::Unexpected(_)), "{error:?}");
    }
    let row = wait(idem.fetch_one("SELECT 1 AS n, NULL::text", &[])).unwrap();
    assert_eq!(row.try_get::<_, i32>("n").unwrap(), 1);
    assert_eq!(row.try_get::<_, Option<String>>(1).unwrap(), None);
    row.try_get::<_, i64>("n").unwrap_err();
    row.try_get::<_, String>(1).unwrap_err();
    row.try_get::<_, i32>("m").unwrap_err();
    row.try_get::<_, i32>(2).unwrap_err();
    let error = wait(idem.fetch_one("SELECT 1 / 0", &[])).unwrap_err();
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("22012"));
}

/// Goal: the server rejects a claim outside of a transaction that the compiler did not detect.
#[test]
fn lone_claim_is_rejected() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let mut tx = client.transaction().unwrap();
    tx.batch_execute("COMMIT").unwrap();
    let idem = PostgresTransaction::new(&mut tx);
    let error = wait(try_claim(&idem, &id("m"), &destination())).unwrap_err();
    assert_eq!(error.sqlstate().map(|state| state.code()), Some("25P01"));
    drop(tx);
    assert!(!is_claimed(&mut client, &id("m")));
}

#[test]
fn lease_is_completed_on_a_connection() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let (id, to) = (id("m"), destination());
    let idem = PostgresConnection::new(&mut client);
    let minute = Duration::from_secs(60);
    let Lease::Acquired(held) = wait(acquire(&idem, &id, &to, minute)).unwrap() else {
        panic!("the message is new");
    };
    assert_eq!(wait(held.complete(&idem, &[fact()])).unwrap().len(), 1);
    assert!(matches!(
        wait(acquire(&idem, &id, &to, minute)).unwrap(),
        Lease::Duplicate
    ));
    let text = idem.client().unwrap().query_one("SELECT 'usable'", &[]);
    assert_eq!(text.unwrap().get::<_, &str>(0), "usable");
}

#[test]
fn borrowed_transaction_fails_instead_of_waiting() {
    let database = Database::create();
    let mut client = connect(&database.url());
    let mut tx = client.transaction().unwrap();
    let (id, to) = (id("m"), destination());
    let idem = PostgresTransaction::new(&mut tx);
    let borrowed = idem.transaction().unwrap();
    let error = wait(try_claim(&idem, &id, &to)).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error:?}");
    assert!(idem.transaction().is_err());
    drop(borrowed);
    assert!(wait(try_claim(&idem, &id, &to)).unwrap().is_new());
}

/// Goal: a handler that ignores the error of a statement, or that executes ROLLBACK, is not
/// acknowledged. The commit of the driver itself reports success.
#[test]
fn commit_fails_without_an_open_transaction() {
    let database = Database::create();
    let mut client = connect(&database.url());
    for (statement, state) in [("SELECT 1 / 0", Some("25P02")), ("ROLLBACK", None)] {
        let mut tx = client.transaction().unwrap();
        let idem = PostgresTransaction::new(&mut tx);
        assert!(
            wait(try_claim(&idem, &id("m"), &destination()))
                .unwrap()
                .is_new()
        );
        // The division fails, and the handler ignores it.
        let _ = tx.batch_execute(statement);
        let error = commit(tx).unwrap_err();
        match state {
            Some(state) => assert_eq!(error.sqlstate().map(|found| found.code()), Some(state)),
            None => assert!(matches!(error, Error::TransactionEnded), "{error:?}"),
        }
        assert!(!is_claimed(&mut client, &id("m")), "{statement}");
    }
}

/// Goal: after a COMMIT whose reply is lost, the next claim returns whether the transaction
/// committed. Invariant: I2.
#[test]
fn lost_reply_to_commit_is_ambiguous() {
    let database = Database::create();
    let mut observer = connect(&database.url());
    // The proxy needs a runtime. The driver must be used outside of it.
    let runtime = Runtime::new().unwrap();
    for (cut, is_committed) in [(Cut::BeforeCommit, false), (Cut::AfterCommit, true)] {
        let id = id(&format!("{cut:?}"));
        let proxy = runtime.block_on(Proxy::to(&database));
        let mut client = connect(proxy.url());
        let mut tx = client.transaction().unwrap();
        let idem = PostgresTransaction::new(&mut tx);
        assert!(
            wait(try_claim(&idem, &id, &destination()))
                .unwrap()
                .is_new()
        );
        proxy.cut_once(cut);
        let error = commit(tx).unwrap_err();
        assert!(proxy.was_cut());
        assert_eq!(error.kind(), ErrorKind::AmbiguousCommit, "{error:?}");
        assert_eq!(is_claimed(&mut observer, &id), is_committed);
    }
}
