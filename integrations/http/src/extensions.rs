//! The values in HTTP extensions: the transaction that a handler gets with its request, and the
//! mark that it may add to its response.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use idem_runtime::{Error, Tx};

/// The transaction of a protected request, in the extensions of the request. It can be
/// [taken](Self::take) once.
#[derive(Clone)]
pub struct RequestTx(Arc<Mutex<Option<Tx>>>);

impl RequestTx {
    pub(crate) fn new(tx: Tx) -> Self {
        Self(Arc::new(Mutex::new(Some(tx))))
    }

    /// Returns the transaction to the first caller. All later callers get [`Error::Invalid`].
    ///
    /// Drop the transaction before the response is returned, or at the latest at the end of the
    /// response body.
    pub fn take(&self) -> Result<Tx, Error> {
        self.withdraw().ok_or_else(|| {
            Error::Invalid("the transaction of this request is already taken".into())
        })
    }

    /// Takes the transaction, so that no handler can take it after that.
    pub(crate) fn withdraw(&self) -> Option<Tx> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for RequestTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTx").finish_non_exhaustive()
    }
}

/// A mark in the extensions of a response with status 4xx: the writes of the handler are committed,
/// for example the record of a declined payment. Without this mark the writes are rolled back, and
/// only the response is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepWrites;
