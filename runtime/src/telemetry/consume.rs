//! The metrics of a consumer: settlements, errors of the source, and pauses.

use idem_client::Destination;
use metrics::{counter, gauge};

use super::metric;
use crate::Settlement;

/// Counts a settlement. `destination` is `None` if no route has matched the message, so that
/// unknown topics do not create time series.
pub(crate) fn settled(destination: Option<&Destination>, settlement: &Settlement) {
    let settlement = match settlement {
        Settlement::Acknowledge => "acknowledge",
        Settlement::Retry { .. } => "retry",
        Settlement::Release { .. } => "release",
        Settlement::Reject { .. } => "reject",
    };
    let destination = destination.map(Destination::to_string).unwrap_or_default();
    counter!(metric::CONSUMER_SETTLED, "destination" => destination, "settlement" => settlement)
        .increment(1);
}

pub(crate) fn source_failed() {
    counter!(metric::CONSUMER_SOURCE_ERRORS).increment(1);
}

pub(crate) fn database_is_away(is_away: bool) {
    gauge!(metric::CONSUMER_DATABASE_AWAY).set(u8::from(is_away));
}

pub(crate) fn destination_is_paused(destination: &Destination, is_paused: bool) {
    gauge!(metric::CONSUMER_PAUSED, "destination" => destination.to_string())
        .set(u8::from(is_paused));
}
