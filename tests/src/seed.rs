//! The seed of the random choices of a test.

/// `cargo xtask soak` gives each run another one through this variable.
const VARIABLE: &str = "IDEM_TEST_SEED";

/// What `IDEM_TEST_SEED` says, or 2026.
///
/// # Panics
/// When the variable is set to something that is not a number: a run with another seed than the one
/// asked for shows nothing.
#[must_use]
pub fn seed() -> u64 {
    let seed = std::env::var(VARIABLE).map_or(2026, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{VARIABLE} is not a number: {text}"))
    });
    println!("seed {seed}");
    seed
}
