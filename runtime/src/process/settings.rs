//! The settings for all messages of an [`Idem`](crate::Idem).

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use idem_client::RecordedEffect;

use crate::{HandlerError, Message, filter::Filter, policy::Table};

/// The settings for all messages of an [`Idem`](crate::Idem).
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) policies: Table,
    pub(crate) filters: Vec<Arc<dyn Filter>>,
    pub(crate) on_duplicate: Option<OnDuplicateCallback>,
    /// `None`: on connections without a pooler.
    pub(crate) prepared_statements: Option<bool>,
}

pub(crate) type OnDuplicateCallback = Arc<
    dyn Fn(Message, Vec<RecordedEffect>) -> BoxFuture<'static, Result<(), HandlerError>>
        + Send
        + Sync,
>;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("policies", &self.policies)
            .field("filters", &self.filters.len())
            .field("on_duplicate", &self.on_duplicate.is_some())
            .field("prepared_statements", &self.prepared_statements)
            .finish()
    }
}
