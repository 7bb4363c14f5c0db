//! What `Debug` shows instead of a payload: its length. Logs are read by more people than messages
//! are.

use std::fmt;

/// The length of a payload.
pub(crate) struct Length(pub(crate) usize);

impl fmt::Debug for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}
