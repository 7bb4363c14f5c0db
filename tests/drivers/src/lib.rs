//! Executes the specification cases with the drivers of several languages.
//!
//! Each driver is a small program that executes single statements: see `README.md`. The runner of
//! [`idem_spec`] sends the statements of the cases, and compares the results.

pub mod install;
mod program;
mod psql;

pub use program::Program;
pub use psql::Psql;
