//! How an [`Idem`] is made.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use crate::{
    Error, Filter, HandlerError, Idem, Message, Policies, RecordedEffect,
    memory::Known,
    policy::{Table, check_capacity, check_time_to_live},
};

/// What is the same for all messages of an [`Idem`].
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) policies: Table,
    pub(crate) filters: Vec<Arc<dyn Filter>>,
    pub(crate) on_duplicate: Option<OnDuplicateCallback>,
    /// Duplicates that need not be asked of the database.
    pub(crate) known: Option<Known>,
    pub(crate) prepared_statements: bool,
}

pub(crate) type OnDuplicateCallback = Arc<
    dyn Fn(Message, Vec<RecordedEffect>) -> BoxFuture<'static, Result<(), HandlerError>>
        + Send
        + Sync,
>;

/// Makes an [`Idem`]: `Idem::builder().policies(...).build()?`.
#[derive(Default)]
#[must_use = "nothing is made before `build`"]
pub struct IdemBuilder {
    policies: Policies,
    filters: Vec<Arc<dyn Filter>>,
    on_duplicate: Option<OnDuplicateCallback>,
    known: Option<(u64, Duration)>,
    prepared_statements: bool,
}

impl IdemBuilder {
    /// How messages are processed, by destination.
    pub fn policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// Adds a filter: it sees messages after, and effects before, those that were added earlier.
    pub fn filter(mut self, filter: impl Filter) -> Self {
        self.filters.push(Arc::new(filter));
        self
    }

    /// What to do with a duplicate and the effects that its first execution recorded, where the
    /// policy says [`OnDuplicate::Effects`](crate::OnDuplicate::Effects): to answer somebody who
    /// waits, for example.
    ///
    /// The message is settled after it. An error is [`Error::Handler`]: the message comes again or,
    /// after a terminal one, is refused.
    pub fn on_duplicate<F, Fut>(mut self, callback: F) -> Self
    where
        F: Fn(Message, Vec<RecordedEffect>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.on_duplicate = Some(Arc::new(move |message, effects| {
            callback(message, effects).boxed()
        }));
        self
    }

    /// Lets this process answer for duplicates that it knows of, without the database: at most
    /// `capacity` of them, each for `ttl` (at most ten years). Off unless asked for.
    ///
    /// It learns of committed claims and of what the database called a duplicate, and never says
    /// that a message is new. It is not asked where the policy wants the recorded effects, a
    /// fingerprint or the age of the message compared. What `idem_forget` frees stays a duplicate
    /// to it until `ttl` is over.
    pub fn remember_duplicates(mut self, capacity: u64, ttl: Duration) -> Self {
        self.known = Some((capacity, ttl));
        self
    }

    /// Whether statements are prepared and kept with their connection; without this they are sent
    /// by their text each time.
    ///
    /// It saves the server the parsing. Not for proxies that give each transaction another
    /// connection.
    pub fn prepared_statements(mut self, prepared_statements: bool) -> Self {
        self.prepared_statements = prepared_statements;
        self
    }

    /// [`Error::Invalid`] when the policies or limits cannot be; it names the rule.
    pub fn build(self) -> Result<Idem, Error> {
        if let Some((capacity, ttl)) = self.known {
            check_capacity(capacity)
                .and(check_time_to_live(ttl))
                .map_err(|why| Error::Invalid(format!("remember_duplicates: {why}")))?;
        }
        Ok(Idem::with(Settings {
            policies: self.policies.build()?,
            filters: self.filters,
            on_duplicate: self.on_duplicate,
            known: self.known.map(|(capacity, ttl)| Known::new(capacity, ttl)),
            prepared_statements: self.prepared_statements,
        }))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("policies", &self.policies)
            .field("filters", &self.filters.len())
            .field("on_duplicate", &self.on_duplicate.is_some())
            .field("known", &self.known)
            .field("prepared_statements", &self.prepared_statements)
            .finish()
    }
}

impl fmt::Debug for IdemBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdemBuilder")
            .field("policies", &self.policies)
            .field("filters", &self.filters.len())
            .field("on_duplicate", &self.on_duplicate.is_some())
            .field("known", &self.known)
            .field("prepared_statements", &self.prepared_statements)
            .finish()
    }
}
