//! The specification cases of idem, and a runner that executes them with any driver.
//!
//! `tests/spec/README.md` describes the files with the cases. A driver implements [`Driver`]:
//! it executes one statement and returns rows or an error. [`failures`] executes the cases, and
//! compares the results.

mod cases;
mod driver;
mod runner;
mod value;

pub use cases::{Call, Case, ExpectedError, FIRST_SESSION, Step, all, directory, parse, texts};
pub use driver::{Driver, Outcome, Refusal};
pub use runner::failures;
pub use value::{Cell, Saved, hex, plain_of, text_of, with_literals};
