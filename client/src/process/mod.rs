//! One message, once: claim, work, record, commit.

mod batch;
mod builder;
mod checked;
mod claim;
mod counted;
mod engine;
mod environment;
mod front;
mod leased;
mod processed;
mod savepoint;
mod session;
mod tx;

use std::{future::Future, sync::Arc};

use deadpool_postgres::Pool;
use tokio_postgres::GenericClient;
use tracing::warn;

use self::{
    builder::Settings,
    engine::Work,
    front::{Prepared, Ready},
};
use crate::{Destination, Error, Handled, Message};

pub use builder::IdemBuilder;
pub(crate) use claim::{Outcome, fingerprint};
pub use processed::Processed;
pub use savepoint::Savepoint;
#[cfg(feature = "http")]
pub(crate) use session::Session;
pub use tx::Tx;
pub(crate) use {
    counted::check_counted, engine::back_off, environment::is_environmental,
    session::leaves_connection_sound,
};

/// Processes messages so that each takes effect once. Cheap to clone; one for a whole application.
#[derive(Clone, Debug, Default)]
pub struct Idem {
    settings: Arc<Settings>,
}

impl Idem {
    /// With the defaults: claim first, by the sender's message id, and acknowledge duplicates
    /// silently.
    pub fn new() -> Self {
        Self::default()
    }

    /// With policies, filters and whatever else is to be different.
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

    /// Claims the message, lets `handler` work, records the effects that it answers, and commits.
    ///
    /// BEGIN travels with the claim, recording with COMMIT: it takes no more round trips than
    /// BEGIN, the handler's own statements and COMMIT. [`Style::Reactive`](crate::Style::Reactive)
    /// takes one more, for its BEGIN travels alone.
    ///
    /// A handler runs again after a lost conflict or connection, so what it does outside of the
    /// transaction may happen more than once. A connection that is lost during COMMIT leaves open
    /// whether it took effect: the claim of the next attempt says so. Only when no attempt is left
    /// this answers [`Error::AmbiguousCommit`], and the next delivery finds out.
    ///
    /// The future may be dropped at any time: then all of the claim, the handler's writes and the
    /// effects take effect, or none.
    ///
    /// Around it the [filters](crate::Filter), and before it the [policy](crate::Policies) of the
    /// destination.
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

    fn work<'w>(&'w self, pool: &'w Pool, ready: &'w Ready) -> Work<'w> {
        Work {
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

    /// Tells the database how long each destination with a rule of its own is remembered, where its
    /// rules give a retention, and answers which these were. Needs the role of an admin
    /// ([`grant`](crate::grant)); nothing else does this.
    ///
    /// Rules for names that begin alike and the default rule cannot be told, for the database knows
    /// only names: of each that has a retention there is a warning. Call
    /// [`configure`](crate::configure) for the names that will come, or give them rules of their
    /// own. Each call waits at most two seconds for running claims; call this outside of a
    /// transaction, which would keep all claims waiting to its end.
    pub async fn configure(&self, client: &impl GenericClient) -> Result<Vec<Destination>, Error> {
        for rule in self.settings.policies.open_retentions() {
            warn!(
                rule,
                "this rule's retention is not applied: the database has to be told each name"
            );
        }
        let mut configured = Vec::new();
        for (destination, retention) in self.settings.policies.retentions()? {
            crate::configure(client, &destination, retention).await?;
            configured.push(destination);
        }
        Ok(configured)
    }
}
