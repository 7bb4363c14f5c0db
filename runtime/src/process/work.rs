//! Handlers inside of this crate. A public function that takes a handler does not use this trait:
//! it has a bound on `Fn`, so that the compiler infers the arguments of a closure. See
//! [`handler`](crate::handler).

use std::future::Future;

use super::{settings::Settings, tx::Tx};
use crate::{Handled, Message, filter::After, panics::unwinding, telemetry};

/// A handler that works in a transaction.
pub(crate) trait Work: Fn(Tx, Message) -> Self::Future {
    type Future: Future<Output = Handled>;
}

impl<F, Fut> Work for F
where
    F: Fn(Tx, Message) -> Fut,
    Fut: Future<Output = Handled>,
{
    type Future = Fut;
}

/// Returns the effects of a handler after the filters, with the trace context of the message. A
/// panic of a filter is an error of the handler, so that the lease of the attempt is ended.
pub(super) async fn filtered(
    settings: &Settings,
    message: &Message,
    handled: impl Future<Output = Handled>,
) -> Handled {
    let mut effects = handled.await?;
    for filter in settings.filters.iter().rev() {
        let consumed = async { filter.on_consumed(message, &effects).await };
        match unwinding(consumed).await? {
            After::Continue => {}
            After::Replace(others) => effects = others,
            After::Stop(error) => return Err(error),
        }
    }
    telemetry::pass_on(message, &mut effects);
    Ok(effects)
}
