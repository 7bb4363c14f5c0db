//! The methods that every [`Executor`] has, and the rule on which pipelining depends, with an
//! executor that has no server.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use idem_client::{Error, Executor, Row};
use tokio_postgres::types::{ToSql, Type};

/// Records the statements, and returns no row.
#[derive(Default)]
struct Recording(Mutex<Vec<String>>);

impl Executor for Recording {
    async fn fetch_all(
        &self,
        sql: &str,
        _parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        self.0.lock().unwrap().push(sql.to_owned());
        Ok(Vec::new())
    }
}

fn executes(executor: &impl Executor) -> Result<(), Error> {
    executor
        .fetch_one("SELECT 1", &[])
        .now_or_never()
        .expect("the executor does not wait")
        .map(drop)
}

#[test]
fn fetch_one_fails_without_a_row() {
    let error = executes(&Recording::default()).unwrap_err();
    assert!(matches!(error, Error::Unexpected(_)), "{error:?}");
    assert!(error.to_string().contains("0 rows"), "{error}");
}

#[test]
fn pointer_executes_with_its_target() {
    let mut executor = Recording::default();
    assert!(executes(&&executor).is_err());
    assert!(executes(&&mut executor).is_err());
    let executor = Box::new(executor);
    assert!(executes(&executor).is_err());
    let executor = Arc::new(*executor);
    assert!(executes(&executor).is_err());
    assert_eq!(*executor.0.lock().unwrap(), ["SELECT 1"; 4]);
}

/// Goal: statements that are polled once, in order, are sent in this order before the first
/// result. The pipelining of this crate depends on it.
#[test]
fn first_poll_sends_the_statement() {
    let executor = Recording::default();
    let first = executor.fetch_one("SELECT 1", &[]);
    let second = executor.fetch_one("SELECT 2", &[]);
    assert!(executor.0.lock().unwrap().is_empty());
    assert!(second.now_or_never().is_some());
    assert!(first.now_or_never().is_some());
    assert_eq!(*executor.0.lock().unwrap(), ["SELECT 2", "SELECT 1"]);
}
