//! The context that a leased handler gets.

use deadpool_postgres::Pool;
use idem_client::lease::Held;
use idem_client::{Destination, MessageId};
use tokio_util::sync::CancellationToken;

use super::Keeper;
use crate::journal::Calls;

/// The context of a leased message for its handler. No transaction is open, and the lease is
/// renewed while the handler works.
#[derive(Debug)]
pub struct LeaseContext {
    held: Held,
    pool: Pool,
    lost: CancellationToken,
}

impl LeaseContext {
    /// Creates the context for an integration with leases of its own. `keeper` renews `held`.
    pub fn new(held: &Held, pool: &Pool, keeper: &Keeper) -> Self {
        Self {
            held: held.clone(),
            pool: pool.clone(),
            lost: keeper.lost().clone(),
        }
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Returns the id of the message.
    pub fn id(&self) -> &MessageId {
        self.held.id()
    }

    /// Returns the destination of the message.
    pub fn destination(&self) -> &Destination {
        self.held.destination()
    }

    /// Returns the number of this attempt, from 1.
    pub fn attempt(&self) -> i32 {
        self.held.attempt()
    }

    /// Returns the error of the previous attempt. If the lease of that attempt expired, this is an
    /// error too.
    pub fn last_error(&self) -> Option<&str> {
        self.held.last_error()
    }

    /// Returns the journal of this message, for external calls.
    pub fn calls(&self) -> Calls {
        Calls::of(&self.held, &self.pool)
    }

    /// Returns a token that is cancelled when the lease is lost. The future of the handler is
    /// dropped at the same time. Tasks that the handler has spawned should watch this token.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}
