//! The name of a destination, checked before it is sent to the server.

use std::fmt;

use tokio_postgres::types::{ToSql, Type};

use crate::{Error, escape};

/// The longest name, in bytes, that the server accepts.
const LONGEST_BYTES: usize = 255;

/// A consuming endpoint or handler, such as `orders.reserve-inventory`.
///
/// Two destinations process the same id independently.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination(String);

impl Destination {
    /// Creates a destination with a name of 1 to 255 bytes.
    ///
    /// Fails with [`Error::Invalid`] for any other length.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        if name.is_empty() {
            return Err(Error::Invalid("a destination must not be empty".into()));
        }
        if name.len() > LONGEST_BYTES {
            return Err(Error::Invalid(format!(
                "a destination has at most {LONGEST_BYTES} bytes, this one has {}",
                name.len()
            )));
        }
        Ok(Self(name))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name as a SQL literal, for a simple query. Fails with [`Error::Invalid`] if the
    /// name contains a zero byte.
    pub fn literal(&self) -> Result<String, Error> {
        escape::literal(&self.0)
    }

    /// Returns the name as a parameter, with its type.
    pub fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        (&self.0, Type::TEXT)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_has_1_to_255_bytes() {
        assert!(Destination::new("").is_err());
        assert!(Destination::new("x".repeat(255)).is_ok());
        assert!(Destination::new("x".repeat(256)).is_err());
    }
}
