//! What a handler of leased messages gets.

use std::future::Future;

use deadpool_postgres::Pool;
use tokio_util::sync::CancellationToken;

use super::{Held, Keeper};
use crate::{Destination, Handled, Message, MessageId, journal::Calls};

/// The work on one leased message: no transaction is open, and the lease is renewed while the
/// handler works.
#[derive(Debug)]
pub struct Work {
    held: Held,
    pool: Pool,
    lost: CancellationToken,
}

impl Work {
    pub(crate) fn new(held: &Held, pool: &Pool, keeper: &Keeper) -> Self {
        Self {
            held: held.clone(),
            pool: pool.clone(),
            lost: keeper.lost().clone(),
        }
    }

    /// The id of the message.
    pub fn id(&self) -> &MessageId {
        self.held.id()
    }

    /// Who works on it.
    pub fn destination(&self) -> &Destination {
        self.held.destination()
    }

    /// The how manyth attempt this is, from 1.
    pub fn attempt(&self) -> i32 {
        self.held.attempt()
    }

    /// What the attempt before failed with; also that its lease ran out.
    pub fn last_error(&self) -> Option<&str> {
        self.held.last_error()
    }

    /// The journal of this message, for calls to something outside of the database.
    pub fn calls(&self) -> Calls {
        Calls::of(&self.held, &self.pool)
    }

    /// Cancelled when the lease is lost. The handler's future is dropped then: what it has spawned
    /// goes by this.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// The work on one leased message, which needs no database.
///
/// A closure is one: `|work: Work, message: Message| async move { ...; Ok(vec![effect]) }`. The
/// effects are recorded together with the completion.
pub trait LeasedHandler: Send + Sync + 'static {
    /// Does the work. The future is dropped when the lease is lost.
    fn handle(&self, work: Work, message: Message) -> impl Future<Output = Handled> + Send;
}

impl<F, Fut> LeasedHandler for F
where
    F: Fn(Work, Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Handled> + Send,
{
    fn handle(&self, work: Work, message: Message) -> impl Future<Output = Handled> + Send {
        self(work, message)
    }
}
