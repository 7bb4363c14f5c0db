//! The builder of [`Idem`].

use std::{future::Future, sync::Arc};

use futures_util::FutureExt;
use idem_client::RecordedEffect;

use super::settings::Settings;
use crate::{Error, HandlerError, Idem, Message, Policies, filter::Filter};

/// Builds an [`Idem`]: `Idem::builder().policies(...).build()?`.
#[derive(Debug, Default)]
#[must_use = "nothing is made before `build`"]
pub struct IdemBuilder {
    policies: Policies,
    /// The settings without the policies, which [`build`](Self::build) checks.
    settings: Settings,
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
        self.settings.filters.push(Arc::new(filter));
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
        self.settings.on_duplicate = Some(Arc::new(move |message, effects| {
            callback(message, effects).boxed()
        }));
        self
    }

    /// Sets whether statements are prepared and kept with their connection.
    ///
    /// By default they are, unless a pooler is between this process and the server, or statements
    /// were lost, as after `DISCARD ALL`, which turns them off for the pool. Prepared
    /// statements save parsing and planning at the server, also those of the claim.
    ///
    /// Set `true` for a pooler that keeps prepared statements, for example PgBouncer 1.21 or later
    /// with `max_prepared_statements`. **Any other pooler could then execute a statement of another
    /// client in place of a statement of idem.**
    pub fn prepared_statements(mut self, prepared_statements: bool) -> Self {
        self.settings.prepared_statements = Some(prepared_statements);
        self
    }

    /// Builds the [`Idem`].
    ///
    /// Fails with [`Error::Invalid`] if a policy or a limit is invalid; the error names the rule.
    pub fn build(self) -> Result<Idem, Error> {
        Ok(Idem::with(Settings {
            policies: self.policies.build()?,
            ..self.settings
        }))
    }
}
