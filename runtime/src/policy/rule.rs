//! One rule of the policies. A member that the rule does not set comes from a less specific rule.

use std::time::Duration;

use crate::policy::{IdStrategy, Isolation, MissingId, OnDuplicate, Policy, Store, Style};

/// One rule of [`Policies`](crate::Policies).
///
/// A member that the rule does not set comes from the next less specific rule.
#[derive(Clone, Debug, Default)]
#[must_use = "a rule does nothing until it is added to the policies"]
pub struct Rule {
    style: Option<Style>,
    id: Option<IdStrategy>,
    missing_id: Option<MissingId>,
    on_duplicate: Option<OnDuplicate>,
    store: Option<Store>,
    retention: Option<Duration>,
    memory_capacity: Option<u64>,
    memory_ttl: Option<Duration>,
    wait: Option<bool>,
    fingerprint: Option<bool>,
    expire: Option<bool>,
    isolation: Option<Isolation>,
    lease: Option<Duration>,
    count_attempts: Option<bool>,
    retry: RetryRule,
}

#[derive(Clone, Copy, Debug, Default)]
struct RetryRule {
    max_attempts: Option<u32>,
    base: Option<Duration>,
    cap: Option<Duration>,
}

impl Rule {
    /// Sets when the claim is made.
    pub fn style(mut self, style: Style) -> Self {
        self.style = Some(style);
        self
    }

    /// Sets where the id of a message comes from.
    pub fn id(mut self, id: IdStrategy) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets what to do with a message that has no id.
    pub fn missing_id(mut self, missing_id: MissingId) -> Self {
        self.missing_id = Some(missing_id);
        self
    }

    /// Sets what to do with a duplicate, besides acknowledging it.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.on_duplicate = Some(on_duplicate);
        self
    }

    /// Sets where processed messages are remembered.
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets how long processed messages are remembered, one microsecond to ten years.
    ///
    /// [`Idem::configure`](crate::Idem::configure) sets it in the database.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Sets the largest number of messages that [`Store::Memory`] remembers.
    ///
    /// All destinations of one rule share this capacity.
    pub fn memory_capacity(mut self, messages: u64) -> Self {
        self.memory_capacity = Some(messages);
        self
    }

    /// Sets how long [`Store::Memory`] remembers a message, at most ten years.
    pub fn memory_ttl(mut self, ttl: Duration) -> Self {
        self.memory_ttl = Some(ttl);
        self
    }

    /// Sets whether to wait for another transaction that is processing the same message.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets whether another payload under the same id is rejected.
    pub fn fingerprint(mut self, fingerprint: bool) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Sets whether messages that were sent before the start of the retained period are rejected.
    pub fn expire(mut self, expire: bool) -> Self {
        self.expire = Some(expire);
        self
    }

    /// Sets the isolation level of the transaction.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Sets the duration of a lease, 100 milliseconds to one day.
    ///
    /// The lease is renewed while its handler runs. If the consumer is killed, the message is
    /// redelivered when the lease expires.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets whether the database counts the attempts at messages that the broker redelivers, or
    /// that come from a broker without a delivery count.
    ///
    /// Each of these messages costs one more transaction, and at times a second connection while
    /// the handler holds its connection.
    pub fn count_attempts(mut self, count_attempts: bool) -> Self {
        self.count_attempts = Some(count_attempts);
        self
    }

    /// Sets how often a message is tried before it is returned to its broker, including the first
    /// attempt.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry.max_attempts = Some(attempts);
        self
    }

    /// Sets the delay before the second attempt, and the longest delay.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.retry.base = Some(base);
        self.retry.cap = Some(cap);
        self
    }

    /// Returns a copy of `less_exact`, the less specific policy. Each field that this rule sets
    /// replaces the field of `less_exact`.
    pub(crate) fn over(&self, less_exact: &Policy) -> Policy {
        let Policy { retry, .. } = less_exact;
        Policy {
            style: self.style.unwrap_or(less_exact.style),
            id: self.id.as_ref().unwrap_or(&less_exact.id).clone(),
            missing_id: self.missing_id.unwrap_or(less_exact.missing_id),
            on_duplicate: self.on_duplicate.unwrap_or(less_exact.on_duplicate),
            store: self.store.unwrap_or(less_exact.store),
            retention: self.retention.or(less_exact.retention),
            memory_capacity: self.memory_capacity.unwrap_or(less_exact.memory_capacity),
            memory_ttl: self.memory_ttl.or(less_exact.memory_ttl),
            wait: self.wait.unwrap_or(less_exact.wait),
            fingerprint: self.fingerprint.unwrap_or(less_exact.fingerprint),
            expire: self.expire.unwrap_or(less_exact.expire),
            isolation: self.isolation.unwrap_or(less_exact.isolation),
            lease: self.lease.unwrap_or(less_exact.lease),
            count_attempts: self.count_attempts.unwrap_or(less_exact.count_attempts),
            retry: crate::policy::Retry {
                max_attempts: self.retry.max_attempts.unwrap_or(retry.max_attempts),
                base: self.retry.base.unwrap_or(retry.base),
                cap: self.retry.cap.unwrap_or(retry.cap),
            },
        }
    }

    /// Returns whether this rule itself sets a retention.
    pub(crate) fn has_retention(&self) -> bool {
        self.retention.is_some()
    }
}
