//! Processes one message once: claim, handler, recording of effects, commit.

mod batch;
mod builder;
mod checked;
pub(crate) mod claim;
mod counted;
mod engine;
mod environment;
mod front;
mod leased;
mod processed;
mod savepoint;
pub(crate) mod session;
mod tx;

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;
use idem_client::{Destination, Executor};
use tracing::warn;

use self::{
    builder::Settings,
    engine::Task,
    front::{Prepared, Ready},
};
use crate::{Error, Handled, Message};

pub use builder::IdemBuilder;
pub(crate) use claim::fingerprint;
pub use processed::Processed;
pub use savepoint::Savepoint;
pub use tx::Tx;
pub(crate) use {
    counted::check_counted, engine::back_off, environment::is_environmental,
    session::leaves_connection_sound,
};

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

    /// Returns a builder for policies, filters and other settings.
    pub fn builder() -> IdemBuilder {
        IdemBuilder::default()
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
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
    /// fails with [`Error::AmbiguousCommit`], and the next delivery resolves the result.
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
        let ready = match self.prepare(message).await? {
            Prepared::Ready(ready) => ready,
            Prepared::Done(processed) => return Ok(processed),
        };
        let handler = |tx, message: Message| {
            let handled = handler(tx, message.clone());
            async move { self.filter_effects(&message, handled.await?).await }
        };
        let processed = match counted::counts(&ready) {
            true => self.process_counted(pool, &ready, &handler).await,
            false => engine::run(&self.work(pool, &ready), &handler, None).await,
        };
        self.conclude(ready, processed).await
    }

    fn work<'w>(&'w self, pool: &'w Pool, ready: &'w Ready) -> Task<'w> {
        Task {
            pool,
            message: &ready.message,
            id: ready.id.as_ref(),
            destination: &ready.destination,
            policy: ready.policy(),
            settings: &self.settings,
            held: None,
            span: ready.processing.span(),
        }
    }

    /// Sets the retention in the database for each destination that has a rule of its own and a
    /// retention in its rules.
    ///
    /// Returns these destinations. Needs the role of an admin
    /// ([`grant`](idem_client::admin::grant)). No other function applies these retentions.
    ///
    /// The retention of a prefix rule or of the default rule is not applied to destinations without
    /// a rule of their own, because the database needs the name of each destination. Each rule with
    /// such a retention is logged as a warning. For these destinations use
    /// [`configure`](idem_client::admin::configure), or add rules of their own. For each
    /// destination this function waits at most two seconds for running claims. Do not use it inside
    /// a transaction: it would block all claims until the end of the transaction.
    pub async fn configure(&self, executor: &impl Executor) -> Result<Vec<Destination>, Error> {
        for rule in self.settings.policies.open_retentions() {
            warn!(
                rule,
                "the retention of this rule is not applied: the database needs each name"
            );
        }
        let mut configured = Vec::new();
        for (destination, retention) in self.settings.policies.retentions()? {
            idem_client::admin::configure(executor, &destination, retention).await?;
            configured.push(destination);
        }
        Ok(configured)
    }
}
