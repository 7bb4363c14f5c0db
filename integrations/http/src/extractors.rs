//! Extractors of axum for the transaction or the lease of a protected request.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body as AxumBody,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use idem_runtime::{Tx, lease::LeaseContext};

use crate::{RequestTx, problem::Problem};

/// The transaction of a protected request: the writes of the handler, the claim of the key and the
/// response commit together. It dereferences to the connection.
///
/// ```
/// use axum::http::StatusCode;
/// use idem_http::InTransaction;
///
/// async fn place(InTransaction(tx): InTransaction, item: String) -> StatusCode {
///     match tx.execute("INSERT INTO orders (item) VALUES ($1)", &[&item]).await {
///         Ok(_) => StatusCode::CREATED,
///         Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
///     }
/// }
/// # drop(axum::routing::post::<_, _, ()>(place));
/// ```
///
/// Rejects with [`NotProtected`] a request that has no transaction. `Option<InTransaction>` is
/// `None` for such a request. The transaction can be extracted once.
pub struct InTransaction(pub Tx);

/// The lease of a protected request, for external calls. Rejects with [`NotProtected`] a request
/// that has no lease. `Option<UnderLease>` is `None` for such a request.
#[derive(Clone, Debug)]
pub struct UnderLease(pub Arc<LeaseContext>);

/// The request of a handler that needs a transaction or a lease has none. Its response is 500, so
/// that no write runs outside of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request has no transaction or lease of an IdempotencyLayer: the layer does not protect \
     it, has the other mode, or the transaction is already taken"
)]
pub struct NotProtected;

impl IntoResponse for NotProtected {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        Problem::Failed.response().map(AxumBody::new)
    }
}

fn transaction(parts: &Parts) -> Option<InTransaction> {
    let tx = parts.extensions.get::<RequestTx>()?;
    tx.withdraw().map(InTransaction)
}

fn lease(parts: &Parts) -> Option<UnderLease> {
    parts.extensions.get().cloned().map(UnderLease)
}

/// Implements both traits with a function that looks for the value.
macro_rules! extractor {
    ($type:ty, $find:ident) => {
        impl<S: Sync> FromRequestParts<S> for $type {
            type Rejection = NotProtected;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotProtected> {
                $find(parts).ok_or(NotProtected)
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $type {
            type Rejection = Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Infallible> {
                Ok($find(parts))
            }
        }
    };
}

extractor!(InTransaction, transaction);
extractor!(UnderLease, lease);
