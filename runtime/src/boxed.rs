//! Boxes the errors of users so that their type stays visible.

use std::{any::Any, error::Error as StdError};

/// Any error.
pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// Boxes an error with its original type, which decides whether the message is the cause. `Into` of
/// an `anyhow::Error` would hide the original error behind a private type.
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
