//! What a handler finds in the extensions of its request, and what it may leave in those of its
//! response.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Error, Tx};

/// The transaction of a protected request, in the request's extensions. [`take`](Self::take) it
/// once.
#[derive(Clone)]
pub struct RequestTx(Arc<Mutex<Option<Tx>>>);

impl RequestTx {
    pub(crate) fn new(tx: Tx) -> Self {
        Self(Arc::new(Mutex::new(Some(tx))))
    }

    /// The transaction, for whoever asks first; [`Error::Invalid`] for all others.
    ///
    /// Drop it before the response is made or, at the latest, with the end of its body.
    pub fn take(&self) -> Result<Tx, Error> {
        self.withdraw().ok_or_else(|| {
            Error::Invalid("the transaction of this request was taken before".into())
        })
    }

    /// So that nobody takes it any more.
    pub(crate) fn withdraw(&self) -> Option<Tx> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for RequestTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTx").finish_non_exhaustive()
    }
}

/// Put into the extensions of a response with a status of 4xx, it keeps what its handler wrote: a
/// declined payment, for example. Without it that is taken back, and the response alone is
/// recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepWrites;
