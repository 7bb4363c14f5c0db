//! The values that a handler gets in the extensions of its request, and may put into the extensions
//! of its response.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Error, Tx};

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

/// Put this into the extensions of a response with status 4xx to keep the writes of the handler,
/// for example a declined payment. Without it the writes are rolled back, and only the response is
/// recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepWrites;
