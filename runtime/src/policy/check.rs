//! Checks the policies at program start, so that a contradiction is found before the first message.

use std::time::Duration;

use crate::policy::{OnDuplicate, Policy, Store, Style};

/// The longest time to live of a memory.
const LONGEST_TTL: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The shortest duration of a lease.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest duration of a lease.
pub const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

pub(super) fn check(policy: &Policy) -> Result<(), String> {
    policy.id.check()?;
    if policy.retry.max_attempts == 0 {
        return Err("max_attempts must be at least 1".into());
    }
    if policy.retry.base > policy.retry.cap {
        return Err("the base of the back-off is longer than its cap".into());
    }
    if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&policy.lease) {
        return Err(format!(
            "a lease must be between 100 milliseconds and one day, not {:?}",
            policy.lease
        ));
    }
    if policy.count_attempts {
        check_leased(policy).map_err(|why| format!("count_attempts: {why}"))?;
    }
    if policy.memory_capacity == 0 {
        return Err("the capacity of a memory must be at least 1".into());
    }
    if policy.memory_ttl.is_zero() || policy.memory_ttl > LONGEST_TTL {
        return Err(format!(
            "the time to live of a memory must be longer than zero and at most ten years, \
             not {:?}",
            policy.memory_ttl
        ));
    }
    if policy.store == Store::Memory {
        let needs_database = [
            (policy.style == Style::Reactive, "style reactive"),
            (
                policy.on_duplicate == OnDuplicate::Effects,
                "on_duplicate effects",
            ),
            (policy.fingerprint, "fingerprint"),
            (policy.expire, "expire"),
        ];
        if let Some((_, what)) = needs_database.iter().find(|(is_asked, _)| *is_asked) {
            return Err(format!(
                "{what} needs the database, but the store is memory"
            ));
        }
    }
    Ok(())
}

/// Returns an error if the policy requires something that a lease does not support.
pub(crate) fn check_leased(policy: &Policy) -> Result<(), String> {
    let not_with_a_lease = [
        (policy.store == Store::Memory, "store memory"),
        (policy.fingerprint, "fingerprint"),
        (policy.expire, "expire"),
    ];
    match not_with_a_lease.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(format!("{what} is not supported for leased messages")),
        None => Ok(()),
    }
}

/// Returns an error if the policy requires something that the look-up before a checked handler does
/// not do. Such a look-up would report another message with the same id as a duplicate.
pub(crate) fn check_checked(policy: &Policy) -> Result<(), String> {
    let not_looked_up = [
        (policy.fingerprint, "fingerprint"),
        (policy.expire, "expire"),
    ];
    match not_looked_up.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(format!("{what} is not supported for checked handlers")),
        None => Ok(()),
    }
}
