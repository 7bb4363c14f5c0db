//! What the proofs and demonstrations of idem share. The proofs themselves are in `tests/`.

pub mod bench;
pub mod chaos;
pub mod clock;
pub mod harness;
pub mod range;
pub mod readme;
pub mod seed;
pub mod stories;
pub mod stress;
