//! Publishers as trait objects, so that publishers of different types can be used together.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use idem_client::relay::OutgoingMessage;

use super::{PublishError, Publisher};

pub(super) trait ErasedPublisher: Send + Sync {
    fn publish<'a>(
        &'a self,
        message: &'a OutgoingMessage,
    ) -> BoxFuture<'a, Result<(), PublishError>>;

    fn check(&self) -> BoxFuture<'_, Result<(), PublishError>>;
}

impl<P: Publisher> ErasedPublisher for P {
    fn publish<'a>(
        &'a self,
        message: &'a OutgoingMessage,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        Publisher::publish(self, message).boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), PublishError>> {
        Publisher::check(self).boxed()
    }
}

impl<P: Publisher> Publisher for Arc<P> {
    async fn publish(&self, message: &OutgoingMessage) -> Result<(), PublishError> {
        Publisher::publish(&**self, message).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        Publisher::check(&**self).await
    }
}
