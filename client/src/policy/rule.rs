//! What one rule says about a policy; what it leaves open comes from a less exact one.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{IdStrategy, Isolation, MissingId, OnDuplicate, Policy, Store, Style};

/// What one rule of [`Policies`](crate::Policies) says. What it does not say is as the next less
/// exact rule has it.
///
/// In a configuration file the names are those of the methods, with hyphens: `on-duplicate =
/// "log"`. Durations are texts such as `"7 days"`, `"1h 30m"` or `"250ms"`. A name that is not
/// known is an error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[must_use = "a rule does nothing until it is one of the policies"]
pub struct Rule {
    style: Option<Style>,
    id: Option<IdStrategy>,
    missing_id: Option<MissingId>,
    on_duplicate: Option<OnDuplicate>,
    store: Option<Store>,
    #[serde(deserialize_with = "duration")]
    retention: Option<Duration>,
    memory_capacity: Option<u64>,
    #[serde(deserialize_with = "duration")]
    memory_ttl: Option<Duration>,
    wait: Option<bool>,
    fingerprint: Option<bool>,
    expire: Option<bool>,
    isolation: Option<Isolation>,
    #[serde(deserialize_with = "duration")]
    lease: Option<Duration>,
    count_attempts: Option<bool>,
    retry: RetryRule,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct RetryRule {
    max_attempts: Option<u32>,
    #[serde(deserialize_with = "duration")]
    base: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    cap: Option<Duration>,
}

impl Rule {
    /// When the claim is made.
    pub fn style(mut self, style: Style) -> Self {
        self.style = Some(style);
        self
    }

    /// Where the id of a message comes from.
    pub fn id(mut self, id: IdStrategy) -> Self {
        self.id = Some(id);
        self
    }

    /// What to do with a message that has none.
    pub fn missing_id(mut self, missing_id: MissingId) -> Self {
        self.missing_id = Some(missing_id);
        self
    }

    /// What to do about a duplicate, besides acknowledging it.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.on_duplicate = Some(on_duplicate);
        self
    }

    /// Where it is remembered what was handled.
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// How long it is remembered, one microsecond to ten years. The database learns of it by
    /// [`Idem::configure`](crate::Idem::configure).
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    /// How many messages [`Store::Memory`] remembers. The destinations of one rule share them.
    pub fn memory_capacity(mut self, messages: u64) -> Self {
        self.memory_capacity = Some(messages);
        self
    }

    /// How long [`Store::Memory`] remembers, at most ten years.
    pub fn memory_ttl(mut self, ttl: Duration) -> Self {
        self.memory_ttl = Some(ttl);
        self
    }

    /// Whether to wait for another transaction that is just handling the same message.
    pub fn wait(mut self, wait: bool) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Whether another payload under the same id is refused.
    pub fn fingerprint(mut self, fingerprint: bool) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Whether messages are refused that were sent before everything that is remembered.
    pub fn expire(mut self, expire: bool) -> Self {
        self.expire = Some(expire);
        self
    }

    /// The isolation level of the transaction.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// How long a message is leased at a time, 100 milliseconds to one day. The lease is renewed
    /// while its handler works; a message whose consumer was killed comes again when it ends.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether the database counts the attempts at messages that their broker delivers again, or
    /// does not count itself. Each of these costs one transaction more, and a connection now and
    /// then beside that of the handler.
    pub fn count_attempts(mut self, count_attempts: bool) -> Self {
        self.count_attempts = Some(count_attempts);
        self
    }

    /// How often a message is tried before it goes back to its broker, the first attempt included;
    /// `retry.max-attempts` in a file.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry.max_attempts = Some(attempts);
        self
    }

    /// The pause before the second attempt, and the longest one; `retry.base` and `retry.cap` in a
    /// file.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.retry.base = Some(base);
        self.retry.cap = Some(cap);
        self
    }

    /// A policy as it is with this rule.
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
            retry: crate::Retry {
                max_attempts: self.retry.max_attempts.unwrap_or(retry.max_attempts),
                base: self.retry.base.unwrap_or(retry.base),
                cap: self.retry.cap.unwrap_or(retry.cap),
            },
        }
    }

    /// Whether it asks for a retention itself.
    pub(crate) fn has_retention(&self) -> bool {
        self.retention.is_some()
    }
}

/// A text such as "7 days".
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map(Some).map_err(|error| {
        D::Error::custom(format!(
            "{text:?} is no duration such as \"7 days\" or \"250ms\": {error}"
        ))
    })
}
