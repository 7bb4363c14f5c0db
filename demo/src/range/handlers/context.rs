//! The context of a handler.

use tokio_postgres::Client;

use crate::range::{hazard::Hazard, trial_state::TrialState};

/// The context of a handler.
pub struct HandlerContext<'a> {
    /// The connection of the consumer.
    pub client: &'a mut Client,
    /// The state that all consumers of the trial share.
    pub state: &'a TrialState,
    /// The fault that can kill the consumer during this delivery.
    pub hazard: Hazard<'a>,
}
