//! The retry policy of a destination.

use std::time::Duration;

use tokio_postgres::types::Type;

use crate::{Destination, Error, Executor};

/// The retry policy of a destination: how often and when a failed message is retried. It is stored
/// in the database and applies to all consumers.
///
/// The delay after the n-th failure is `base` times `factor` to the power of n - 1, at most `cap`.
/// The share `jitter` of the delay is random.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    max_attempts: i32,
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: f64,
    final_errors: Vec<String>,
}

impl Default for RetryPolicy {
    /// The policy of a destination that has no policy of its own: 10 attempts, and delays from 1 s,
    /// doubled up to 10 minutes.
    fn default() -> Self {
        Self {
            max_attempts: 10,
            base: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(600),
            jitter: 0.2,
            final_errors: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// Sets the number of attempts after which a message becomes a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the delay after the first failure and the longest delay.
    #[must_use]
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        (self.base, self.cap) = (base, cap);
        self
    }

    /// Sets the factor by which each delay is longer than the previous delay.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets the share of a delay that is random, 0 to 1.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Adds a LIKE pattern of errors after which a message is not retried. May be called several
    /// times.
    #[must_use]
    pub fn final_error(mut self, pattern: impl Into<String>) -> Self {
        self.final_errors.push(pattern.into());
        self
    }
}

/// Sets the retry policy of a destination. Requires the role of an admin.
pub async fn configure_retries(
    executor: &impl Executor,
    destination: &Destination,
    policy: &RetryPolicy,
) -> Result<(), Error> {
    executor
        .fetch_all(
            "SELECT idem_configure_retries($1, max_attempts => $2, \
             base => make_interval(secs => $3), factor => $4, \
             cap => make_interval(secs => $5), jitter => $6, final_errors => $7)",
            &[
                destination.parameter(),
                (&policy.max_attempts, Type::INT4),
                (&policy.base.as_secs_f64(), Type::FLOAT8),
                (&policy.factor, Type::FLOAT8),
                (&policy.cap.as_secs_f64(), Type::FLOAT8),
                (&policy.jitter, Type::FLOAT8),
                (&policy.final_errors, Type::TEXT_ARRAY),
            ],
        )
        .await?;
    Ok(())
}
