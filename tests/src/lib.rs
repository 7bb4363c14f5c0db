//! The code that the tests, the demo and the benchmarks of idem share. The tests are in `tests/`.

pub mod bench;
pub mod chaos;
pub mod clock;
pub mod demo;
pub mod harness;
pub mod range;
pub mod readme;
pub mod search_path;
pub mod seed;
pub mod stories;
pub mod stress;
