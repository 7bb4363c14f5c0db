//! The errors of a source, and the error of a consumer that ended without a requested shutdown.

use super::summary::Summary;

/// An error of a broker, or of the connection to it.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// The source of a [`Consumer`](crate::Consumer) delivers no more messages. All messages that the
/// source had delivered are settled.
#[derive(Debug, thiserror::Error)]
#[error("the source ended without a requested shutdown")]
#[non_exhaustive]
pub struct SourceEnded {
    /// What the consumer did until the source ended.
    pub summary: Summary,
    /// The last error of the source, if no delivery followed it.
    #[source]
    pub error: Option<TransportError>,
}
