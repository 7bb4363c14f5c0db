//! The seed for the random choices of a test.

/// The environment variable with the seed. `cargo xtask test --repeat` sets another seed for
/// each run.
const VARIABLE: &str = "IDEM_TEST_SEED";

/// Returns the value of `IDEM_TEST_SEED`, or 2026 when the variable is not set.
///
/// # Panics
/// When the value is not a number. A run with a default seed would not repeat the run that was
/// requested.
#[must_use]
pub fn seed() -> u64 {
    let seed = std::env::var(VARIABLE).map_or(2026, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{VARIABLE} is not a number: {text}"))
    });
    println!("seed {seed}");
    seed
}
