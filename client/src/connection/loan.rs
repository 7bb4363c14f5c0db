//! One connection on loan.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use deadpool_postgres::{ClientWrapper, Object, Pool};

use super::{
    closing::close,
    connection,
    turns::{Patience, Turn, turn},
};
use crate::{Error, process::leaves_connection_sound};

/// A connection that was taken from the pool. [`give_back`](Loan::give_back) returns it. Dropped
/// without that it is closed, because a transaction or a statement may still be open on it.
pub(crate) struct Loan {
    object: Option<Object>,
    /// BEGIN was sent, and neither COMMIT nor ROLLBACK.
    is_open: AtomicBool,
    /// The server has begun the transaction. Before that, it may still execute what the connection
    /// was used for earlier.
    has_begun: AtomicBool,
    /// Dropped after `object`: the handler whose turn is next finds the connection in the pool.
    _turn: Option<Turn>,
}

impl Loan {
    /// For a short statement.
    pub(crate) async fn take(pool: &Pool) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            object: Some(connection(pool).await?),
            is_open: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            _turn: None,
        }))
    }

    /// For a handler, whose time is not limited.
    pub(crate) async fn for_handler(pool: &Pool, patience: Patience) -> Result<Arc<Self>, Error> {
        let turn = turn(pool, patience).await?;
        Ok(Arc::new(Self {
            object: Some(connection(pool).await?),
            is_open: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
            _turn: turn,
        }))
    }

    pub(crate) fn client(&self) -> &ClientWrapper {
        match &self.object {
            Some(object) => object,
            // `object` leaves in `give_back` and `drop` only, which take the last handle.
            None => unreachable!("a loan has its connection until its last handle is gone"),
        }
    }

    /// BEGIN is about to be sent.
    pub(crate) fn begins(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// The server has responded to BEGIN.
    pub(crate) fn begun(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    /// COMMIT or ROLLBACK is about to be sent.
    pub(crate) fn ends(&self) {
        self.is_open.store(false, Ordering::Release);
        self.has_begun.store(false, Ordering::Release);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Whether a handler has kept its [`Tx`](crate::Tx).
    pub(crate) fn is_kept(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Returns the connection to its pool. Its transaction has ended, or the statement that ends it
    /// is on its way.
    pub(crate) fn give_back(self: Arc<Self>) {
        if let Some(mut loan) = Arc::into_inner(self) {
            drop(loan.object.take());
        }
    }

    /// Returns the connection after a statement, unless its error says that it may not be sound.
    pub(crate) fn end<T>(self: Arc<Self>, answer: Result<T, Error>) -> Result<T, Error> {
        if answer.as_ref().err().is_none_or(leaves_connection_sound) {
            self.give_back();
        }
        answer
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            close(object, self.has_begun.load(Ordering::Acquire));
        }
    }
}
