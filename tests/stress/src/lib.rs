//! The rotation under stress: clients claim, roll back and are killed while the ring rotates, and a
//! checker reports whether any message was handled twice or lost.
//!
//! A checker that cannot fail proves nothing: [`broken`] has variants of the protocol that the
//! checker must catch.

pub mod broken;
mod chaos;
pub mod checker;
mod client;
mod duration;
mod import;
pub mod lease;
mod line;
pub mod outside;
mod run;
mod window;

pub use duration::{deadline, duration};
pub use run::{Config, Coverage, Goal, Outcome, Rotation, run};
