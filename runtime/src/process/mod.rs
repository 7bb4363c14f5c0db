//! Processes one message once: claim, handler, recording of effects, commit.
//!
//! `pipeline.rs` has all steps in their order. The other files have the details.

mod batch;
mod builder;
pub(crate) mod claim;
mod counting;
mod duplicate;
mod environment;
mod filters;
mod identify;
mod leased;
mod leases;
mod pipeline;
mod processed;
mod recall;
pub(crate) mod session;
mod settings;
mod task;
mod tx;
mod work;

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;
use idem_client::MessageId;

use self::{identify::identify, pipeline::Pipeline, settings::Settings};
use crate::{Error, Handled, Message, lease::LeaseContext};

pub use builder::IdemBuilder;
pub(crate) use claim::fingerprint;
pub use processed::Processed;
pub use tx::Tx;
pub(crate) use {counting::check_counted, environment::caused_by_environment};

/// Processes messages so that each takes effect once.
///
/// Cheap to clone. One value serves a whole application.
#[derive(Clone, Debug, Default)]
pub struct Idem {
    settings: Arc<Settings>,
}

impl Idem {
    /// Creates a value with the defaults: claim before the handler, use the sender's message id,
    /// and acknowledge duplicates silently.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the id of a message according to its policy; `None` if it has no id and the policy
    /// accepts that.
    pub(crate) fn id_of(&self, message: &Message) -> Result<Option<MessageId>, Error> {
        identify(&self.settings, message).map(|(_, _, id)| id)
    }

    fn pipeline<'p>(&'p self, pool: &'p Pool) -> Pipeline<'p> {
        Pipeline {
            settings: &self.settings,
            pool,
        }
    }

    /// Claims the message, runs `handler`, records the effects that it returns, and commits.
    ///
    /// BEGIN and the claim share one round trip, and so do the recording of the effects and COMMIT.
    /// So this function takes no more round trips than BEGIN, the handler's own statements and
    /// COMMIT. [`Style::Reactive`](crate::policy::Style::Reactive) takes one more round trip,
    /// because its BEGIN is sent without the claim.
    ///
    /// The handler runs again after a lost conflict or connection, so its actions outside of the
    /// transaction may happen more than once. If a connection is lost during COMMIT, the claim of
    /// the next attempt shows whether the commit took effect. If no attempt is left, this function
    /// fails with [`AmbiguousCommit`](idem_client::Error::AmbiguousCommit), and the next delivery
    /// resolves the result.
    ///
    /// The future may be dropped at any time. Then either the claim, the handler's writes and the
    /// effects all take effect, or nothing does.
    ///
    /// The [policy](crate::Policies) of the destination is applied before the handler. The
    /// [filters](crate::filter::Filter) run before and after it.
    pub async fn process<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        self.pipeline(pool).process(message, &handler).await
    }

    /// Leases the message, runs `handler` without a transaction, and completes the message with the
    /// effects that the handler returns.
    ///
    /// Use this function for work that cannot be done in one transaction with the claim. The lease
    /// is committed before the handler starts, and it is renewed while the handler runs. If the
    /// lease is lost, the handler is dropped and this function fails with [`Error::LeaseLost`].
    /// Actions of the handler outside of the database can happen more than once, because the
    /// progress of a killed attempt is not known. The journal, [`LeaseContext::calls`], records
    /// such actions for the next attempt. The claim and the effects take effect once, in the one
    /// transaction that completes the message.
    ///
    /// A failed attempt is counted in the database, and [`Error::Attempt`] contains the time until
    /// the next one. `idem_configure_retries` sets the number of attempts and the back-off. A
    /// message that has used up its attempts, or that failed with a terminal error, is moved to the
    /// dead letters of the database ([`Processed::Buried`]).
    ///
    /// The future may be dropped at any time: the message is redelivered after the lease has
    /// expired.
    pub async fn process_leased<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(LeaseContext, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        self.pipeline(pool).process_leased(message, handler).await
    }

    /// Skips the message if it was processed before, runs `handler` without a transaction, and then
    /// claims the message with its effects.
    ///
    /// No message is lost: a message is claimed only after its handler has succeeded. The effects
    /// are recorded once, with the claim. **The work of the handler is not exactly once**: the
    /// handler runs again if its process was killed before the claim. Two handlers can run for one
    /// message at the same time. Only one of them can claim the message at its end; the result of
    /// the other is a duplicate, and its effects are dropped. Use this function for work that may
    /// occasionally be done twice. [`process_leased`](Self::process_leased) excludes other
    /// processes while the handler runs, and counts attempts.
    ///
    /// Fails with [`Error::Policy`], before the handler runs, if the policy compares fingerprints
    /// or rejects expired messages. Attempts are not counted.
    pub async fn process_checked<F, Fut>(
        &self,
        pool: &Pool,
        message: &Message,
        handler: F,
    ) -> Result<Processed, Error>
    where
        F: FnOnce(Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        let handler = |(), message| handler(message);
        self.pipeline(pool).process_checked(message, handler).await
    }

    /// Processes many messages in one transaction.
    ///
    /// Returns a result for each message, in the same order. A panic of the handler, a filter, an
    /// id function or a callback is an [`Error::Handler`] of its message.
    ///
    /// One statement claims all messages. The handler then runs for one message after the other.
    /// The effects are recorded in the same round trip as COMMIT. If anything fails, everything is
    /// rolled back and the messages are processed one by one, so that only the failing message
    /// fails. In this case the handler runs again for each message. The second of two messages with
    /// the same id is a duplicate.
    ///
    /// Consecutive messages share a transaction if they have the same destination, if each has an
    /// id, and if their policy has the eager style and the database as its store. The policy must
    /// not disable waiting, compare fingerprints, expire messages, read the effects of duplicates,
    /// or count this delivery. All other messages are processed one by one.
    #[must_use = "each result contains the settlement for the broker"]
    pub async fn process_batch<F, Fut>(
        &self,
        pool: &Pool,
        messages: &[Message],
        handler: F,
    ) -> Vec<Result<Processed, Error>>
    where
        F: Fn(Tx, Message) -> Fut,
        Fut: Future<Output = Handled>,
    {
        self.pipeline(pool).process_batch(messages, &handler).await
    }
}
