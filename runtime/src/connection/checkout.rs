//! A connection that is checked out of its pool.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{ClientWrapper, Object, Pool};
use tokio_postgres::Client;

use super::{
    closing::close,
    connection,
    process_id::process_id,
    sound::leaves_connection_sound,
    turns::{Patience, Turn, turn},
    within,
};
use crate::Error;

/// A connection that is checked out of its pool. [`return_to_pool`](Checkout::return_to_pool)
/// returns it. A checkout that is dropped without this call closes its connection, because a
/// transaction or a statement may still be open on it.
pub struct Checkout {
    object: Option<Object>,
    /// Whether BEGIN was sent, and neither COMMIT nor ROLLBACK after it.
    is_open: AtomicBool,
    /// Whether the server has replied to BEGIN. Before the reply, the server may still execute an
    /// earlier statement of the connection.
    has_begun: AtomicBool,
    /// This field is dropped after `object`, so that the handler that gets the next turn finds the
    /// connection in the pool.
    _turn: Option<Turn>,
}

impl Checkout {
    /// Checks out a connection for a short statement.
    pub(crate) async fn take(pool: &Pool) -> Result<Arc<Self>, Error> {
        Self::with(pool, None).await
    }

    /// Checks out a connection for a handler, which may use it for any time.
    pub(crate) async fn for_handler(pool: &Pool, patience: Patience) -> Result<Arc<Self>, Error> {
        let turn = turn(pool, patience).await?;
        Self::with(pool, turn).await
    }

    async fn with(pool: &Pool, turn: Option<Turn>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            object: Some(connection(pool).await?),
            is_open: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            _turn: turn,
        }))
    }

    /// Returns the pool of the connection, or `None` if the pool is dropped.
    pub(crate) fn pool(&self) -> Option<Pool> {
        self.object.as_ref().and_then(Object::pool)
    }

    pub(crate) fn client(&self) -> &ClientWrapper {
        match &self.object {
            Some(object) => object,
            // Only `return_to_pool` and `drop` take `object`, and both own the last handle of the
            // checkout.
            None => unreachable!("the connection exists until its last handle is dropped"),
        }
    }

    /// Notes that BEGIN is about to be sent.
    pub(crate) fn begins(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Notes that the server has replied to BEGIN.
    pub(crate) fn begun(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    /// Returns whether the connection was made to this process of the server, without a pooler.
    pub(crate) fn is_made_to(&self, process: Option<i32>) -> bool {
        process.is_some() && process == process_id(self.client())
    }

    /// Notes that COMMIT or ROLLBACK is about to be sent.
    pub(crate) fn ends(&self) {
        self.is_open.store(false, Ordering::Release);
        self.has_begun.store(false, Ordering::Release);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns whether a handler has kept its [`Tx`](crate::Tx).
    pub(crate) fn is_kept(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Returns the connection to its pool. Its transaction has ended, or the statement that ends it
    /// was sent.
    pub(crate) fn return_to_pool(self: Arc<Self>) {
        if let Some(mut checkout) = Arc::into_inner(self) {
            drop(checkout.object.take());
        }
    }

    /// Returns the connection to its pool after a statement, unless the error means that the
    /// connection may be unusable.
    pub(crate) fn end<T>(self: Arc<Self>, answer: Result<T, impl Into<Error>>) -> Result<T, Error> {
        let answer = answer.map_err(Into::into);
        if answer.as_ref().err().is_none_or(leaves_connection_sound) {
            self.return_to_pool();
        }
        answer
    }
}

/// For the statements of [`on_connection`].
impl Deref for Checkout {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            close(
                object,
                self.is_open(),
                self.has_begun.load(Ordering::Acquire),
            );
        }
    }
}

/// Runs a short statement on a connection of the pool, with a time limit: see [`within`]. When the
/// future is dropped, its connection is closed.
pub(crate) async fn on_connection<T, E, F, Fut>(
    pool: &Pool,
    limit: Duration,
    statement: F,
) -> Result<T, Error>
where
    F: FnOnce(Arc<Checkout>) -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<Error>,
{
    let checkout = Checkout::take(pool).await?;
    let result = within(limit, statement(Arc::clone(&checkout))).await;
    checkout.end(result)
}
