//! The duration of a stress test.

use std::time::Duration;

/// The variable that overrides the duration. `cargo xtask test everything` sets it for long stress.
const VARIABLE: &str = "IDEM_TEST_STRESS_SECONDS";

/// The duration in CI. The stress tests reach the coverage that they require within this time.
const DEFAULT: Duration = Duration::from_secs(15);

/// The time that a run may need beyond its duration. The longest run that was measured took 80 s,
/// while each processor also had seven other busy processes.
const PATIENCE: Duration = Duration::from_secs(185);

/// Returns the duration of one stress test: `IDEM_TEST_STRESS_SECONDS`, or 15 seconds.
///
/// # Panics
/// Panics when the variable is set to a text that is not a number of seconds.
#[must_use]
pub fn duration() -> Duration {
    parse(std::env::var(VARIABLE).ok().as_deref())
}

/// Returns the longest time that a run may take to reach its coverage. A busy machine needs more
/// than `duration`.
#[must_use]
pub fn deadline() -> Duration {
    duration() + PATIENCE
}

fn parse(seconds: Option<&str>) -> Duration {
    seconds.map_or(DEFAULT, |text| {
        let parsed = text.parse().map(Duration::from_secs);
        parsed.unwrap_or_else(|_| panic!("{VARIABLE} is not a number of seconds: {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_that_of_the_variable_or_the_default() {
        assert_eq!(parse(None), Duration::from_secs(15));
        assert_eq!(parse(Some("120")), Duration::from_secs(120));
    }

    #[test]
    #[should_panic(expected = "IDEM_TEST_STRESS_SECONDS is not a number of seconds: long")]
    fn duration_that_is_not_a_number_panics() {
        parse(Some("long"));
    }
}
