//! How long a stress test runs.

use std::time::Duration;

/// `cargo xtask test everything` sets this variable to its long stress.
const VARIABLE: &str = "IDEM_TEST_STRESS_SECONDS";

/// What CI runs. The coverage that the stress tests demand is reached within it.
const DEFAULT: Duration = Duration::from_secs(15);

/// The longest run that was seen, beside seven busy processes for each processor, took 80 s.
const PATIENCE: Duration = Duration::from_secs(185);

/// The duration of one stress test: `IDEM_TEST_STRESS_SECONDS`, or 15 seconds.
///
/// # Panics
/// When the variable is set to something that is not a number of seconds.
#[must_use]
pub fn duration() -> Duration {
    parse(std::env::var(VARIABLE).ok().as_deref())
}

/// How long a run may take to meet what makes it meaningful. A busy machine needs more than
/// `duration`.
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
