use crate::memory::OutOfMemory;
use std::borrow::Cow;

/// An invalid argument: SQLSTATE 22023, with a hint that describes a valid argument.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    pub message: String,
    pub hint: Cow<'static, str>,
}

impl Invalid {
    pub fn new(message: impl Into<String>, hint: impl Into<Cow<'static, str>>) -> Self {
        Invalid {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// The reason why an argument is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// Checks that `text` has 1 to `max` bytes.
pub fn check_len(what: &str, text: &str, max: usize) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(
            format!("{what} is empty"),
            format!("It must have 1 to {max} bytes."),
        ));
    }
    if text.len() > max {
        return Err(Invalid::new(
            format!("{what} has {} bytes", text.len()),
            format!("It must have 1 to {max} bytes."),
        ));
    }
    Ok(())
}
