//! The destinations that a rule applies to: one name, or all names with a prefix.

use std::fmt;

use idem_client::Destination;

use crate::Error;

/// The destinations that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pattern {
    Exact(String),
    Prefix(String),
}

impl Pattern {
    /// Returns the name or the prefix.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Exact(name) | Self::Prefix(name) => name,
        }
    }

    /// Returns whether the rule applies to the destination of this name.
    pub(super) fn takes(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => name == exact,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }

    /// Returns a number that is larger for a more specific pattern.
    pub(super) fn specificity(&self) -> usize {
        match self {
            Self::Prefix(prefix) => prefix.len(),
            Self::Exact(_) => usize::MAX,
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::Invalid(format!("{self}: {why}")));
        match self {
            // A prefix has the same limits as the name of a destination, so the last arm checks
            // both.
            Self::Prefix(prefix) if prefix.is_empty() => refuse(
                "a prefix must not be empty; use the default rule for all other destinations",
            ),
            Self::Prefix(prefix) if prefix.ends_with('*') => {
                refuse("specify a prefix without the *")
            }
            Self::Exact(name) if name.ends_with('*') && name != "*" => {
                refuse("specify a name with * as a prefix")
            }
            Self::Exact(name) | Self::Prefix(name) => {
                Destination::new(name.as_str())?;
                Ok(())
            }
        }
    }
}

/// The text as it is written in a file.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "destination {name:?}"),
            Self::Prefix(prefix) => write!(f, "destinations {:?}", format!("{prefix}*")),
        }
    }
}
