//! The end of a consumer that no shutdown requested.

use super::{Summary, TransportError};

/// The source of a [`Consumer`](crate::Consumer) delivers no more messages. All that it had
/// delivered is settled.
#[derive(Debug, thiserror::Error)]
#[error("the source ended, and no shutdown was requested")]
#[non_exhaustive]
pub struct SourceEnded {
    /// What the consumer did until then.
    pub summary: Summary,
    /// The last error of the source, when no delivery followed it.
    #[source]
    pub error: Option<TransportError>,
}
