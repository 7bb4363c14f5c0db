//! The builder of [`Idem`].

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::FutureExt;
use idem_client::RecordedEffect;

use super::settings::{OnDuplicateCallback, Settings};
use crate::{
    Error, HandlerError, Idem, Message, Policies,
    filter::Filter,
    memory::Known,
    policy::{check_capacity, check_time_to_live},
};

/// Builds an [`Idem`]: `Idem::builder().policies(...).build()?`.
#[derive(Default)]
#[must_use = "nothing is made before `build`"]
pub struct IdemBuilder {
    policies: Policies,
    filters: Vec<Arc<dyn Filter>>,
    on_duplicate: Option<OnDuplicateCallback>,
    known: Option<(u64, Duration)>,
    prepared_statements: bool,
}

impl Idem {
    /// Returns a builder for policies, filters and other settings.
    pub fn builder() -> IdemBuilder {
        IdemBuilder::default()
    }
}

impl IdemBuilder {
    /// Sets how messages are processed, by destination.
    pub fn policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// Adds a filter.
    ///
    /// This filter gets each message after the filters that were added earlier, and the effects
    /// before these filters.
    pub fn filter(mut self, filter: impl Filter) -> Self {
        self.filters.push(Arc::new(filter));
        self
    }

    /// Sets a callback for duplicates, for destinations with the policy
    /// [`OnDuplicate::Effects`](crate::policy::OnDuplicate::Effects).
    ///
    /// The callback gets the message and the effects that the first execution of the message
    /// recorded, for example to reply to a waiting client.
    ///
    /// The message is settled after the callback has returned. An error of the callback becomes
    /// [`Error::Handler`]: the message is redelivered or, after a terminal error, rejected.
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

    /// Remembers processed messages in this process, so that the database is not queried for their
    /// duplicates. At most `capacity` messages are remembered, each for `ttl` (at most ten years).
    ///
    /// Off by default.
    ///
    /// The memory holds committed claims and messages that the database reported as duplicates. It
    /// never decides that a message is new. It is not used if the policy requests the recorded
    /// effects, compares a fingerprint, or compares the age of the message. If `idem_forget`
    /// removes the claim of a message, the message is still a duplicate in this memory until `ttl`
    /// is over.
    pub fn remember_duplicates(mut self, capacity: u64, ttl: Duration) -> Self {
        self.known = Some((capacity, ttl));
        self
    }

    /// Sets whether statements are prepared and kept with their connection.
    ///
    /// By default each statement is sent as text.
    ///
    /// Prepared statements save parsing and planning at the server, also those of the claim. They
    /// do not work with a proxy that assigns another connection to each transaction and does not
    /// keep prepared statements.
    pub fn prepared_statements(mut self, prepared_statements: bool) -> Self {
        self.prepared_statements = prepared_statements;
        self
    }

    /// Builds the [`Idem`].
    ///
    /// Fails with [`Error::Invalid`] if a policy or a limit is invalid; the error names the rule.
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
