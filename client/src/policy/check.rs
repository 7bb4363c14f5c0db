//! What contradicts itself in a policy, and is better said when a program starts than when a
//! message comes.

use std::time::Duration;

use crate::{OnDuplicate, Policy, Store, Style};

/// What the server takes as a retention, and more than any cache is asked to keep.
const LONGEST: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What a lease can be.
pub(crate) const SHORTEST_LEASE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

pub(super) fn check(policy: &Policy) -> Result<(), String> {
    policy.id.check()?;
    if let Some(retention) = policy.retention
        && !(Duration::from_micros(1)..=LONGEST).contains(&retention)
    {
        return Err(format!(
            "a retention is between one microsecond and ten years, not {retention:?}"
        ));
    }
    if policy.retry.max_attempts == 0 {
        return Err("a message is tried at least once: max-attempts is 0".into());
    }
    if policy.retry.base > policy.retry.cap {
        return Err(
            "the first pause (retry.base) is longer than the longest one (retry.cap)".into(),
        );
    }
    if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&policy.lease) {
        return Err(format!(
            "a lease is between 100 milliseconds and one day, not {:?}",
            policy.lease
        ));
    }
    if policy.count_attempts {
        check_leased(policy).map_err(|why| format!("count-attempts: {why}"))?;
    }
    check_capacity(policy.memory_capacity)?;
    policy.memory_ttl.map_or(Ok(()), check_time_to_live)?;
    if policy.style == Style::CheckOnly && (policy.fingerprint || policy.expire) {
        return Err("style check-only claims nothing, and only a claim compares fingerprints and times (expire)".into());
    }
    if policy.store == Store::Memory {
        let needs_database = [
            (policy.style == Style::Reactive, "style reactive"),
            (policy.style == Style::CheckOnly, "style check-only"),
            (
                policy.on_duplicate == OnDuplicate::Effects,
                "on-duplicate effects",
            ),
            (policy.fingerprint, "fingerprint"),
            (policy.expire, "expire"),
        ];
        if let Some((_, what)) = needs_database.iter().find(|(is_asked, _)| *is_asked) {
            return Err(format!(
                "{what} needs the database, and the store is memory"
            ));
        }
    }
    Ok(())
}

/// What a policy asks for that a lease does not do.
pub(crate) fn check_leased(policy: &Policy) -> Result<(), String> {
    let not_with_a_lease = [
        (policy.store == Store::Memory, "store memory"),
        (policy.style == Style::CheckOnly, "style check-only"),
        (policy.fingerprint, "fingerprint"),
        (policy.expire, "expire"),
    ];
    match not_with_a_lease.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) => Err(format!("{what} is not for messages that are leased")),
        None => Ok(()),
    }
}

pub(crate) fn check_capacity(messages: u64) -> Result<(), String> {
    match messages {
        0 => Err("a memory of no messages remembers nothing".into()),
        _ => Ok(()),
    }
}

pub(crate) fn check_time_to_live(ttl: Duration) -> Result<(), String> {
    match ttl.is_zero() || ttl > LONGEST {
        true => Err(format!(
            "a memory keeps for more than nothing and at most ten years, not {ttl:?}"
        )),
        false => Ok(()),
    }
}
