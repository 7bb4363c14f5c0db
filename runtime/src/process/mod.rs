//! Processes one message once: claim, handler, recording of effects, commit.
//!
//! `pipeline.rs` has all steps in their order. The other files have the details.

mod batch;
mod builder;
mod checked;
pub(crate) mod claim;
mod counting;
mod doubt;
mod duplicate;
mod environment;
mod in_transaction;
mod leases;
mod pipeline;
mod prepare;
mod processed;
pub(crate) mod session;
mod settings;
mod task;
mod tx;
mod under_lease;
mod work;

use std::sync::Arc;

use idem_client::MessageId;

use self::{prepare::identify, settings::Settings};
use crate::{Error, Message};

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
}
