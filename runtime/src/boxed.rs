//! Boxes the errors of handlers without hiding their type.

use std::{any::Any, error::Error as StdError};

/// Any error.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Boxes an error with its original type. The runtime uses this type to decide whether the message
/// caused the error. `Into` would hide the error inside an `anyhow::Error` behind a private type.
pub(crate) fn boxed<E: Into<BoxError> + 'static>(error: E) -> BoxError {
    let nothing = || BoxError::from("an error without a text");
    let mut given = Some(error);
    let any: &mut dyn Any = &mut given;
    match any
        .downcast_mut::<Option<anyhow::Error>>()
        .map(Option::take)
    {
        Some(error) => error.map_or_else(
            nothing,
            anyhow::Error::reallocate_into_boxed_dyn_error_without_backtrace,
        ),
        None => given.map_or_else(nothing, Into::into),
    }
}
