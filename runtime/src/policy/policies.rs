//! The rules for all destinations.

use std::{fmt, sync::Arc};

use super::{
    Policy,
    pattern::Pattern,
    table::{Rule, Table},
};
use crate::Error;

/// How messages are processed, by destination: a default rule, rules for prefixes of names, and
/// rules for single names.
///
/// A rule changes a copy of the policy of the next less specific rule. So the more specific rule
/// wins, member by member: an exact name over a prefix, a longer prefix over a shorter one, and any
/// rule over the default rule.
///
/// ```
/// use idem_runtime::{Idem, Policies, policy::{OnDuplicate, Style}};
///
/// let policies = Policies::default()
///     .default_rule(|policy| policy.on_duplicate = OnDuplicate::Log)
///     .prefix("orders.", |policy| policy.wait = false)
///     .destination("orders.reserve", |policy| policy.style = Style::Reactive);
/// let idem = Idem::builder().policies(policies).build()?;
/// # let _ = idem;
/// # Ok::<(), idem_runtime::Error>(())
/// ```
///
/// [`IdemBuilder::build`](crate::process::IdemBuilder::build) checks the policies and rejects
/// policies that contradict themselves.
#[derive(Clone, Default)]
#[must_use = "policies do nothing until an `Idem` is built with them"]
pub struct Policies {
    default: Policy,
    rules: Vec<(Pattern, Rule)>,
}

impl Policies {
    /// Changes the default rule, which provides each member that no other rule sets.
    pub fn default_rule(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.default);
        self
    }

    /// Adds a rule for one destination.
    pub fn destination(
        self,
        name: impl Into<String>,
        rule: impl Fn(&mut Policy) + Send + Sync + 'static,
    ) -> Self {
        self.with(Pattern::Exact(name.into()), Arc::new(rule))
    }

    /// Adds a rule for all destinations with this prefix in their name.
    pub fn prefix(
        self,
        prefix: impl Into<String>,
        rule: impl Fn(&mut Policy) + Send + Sync + 'static,
    ) -> Self {
        self.with(Pattern::Prefix(prefix.into()), Arc::new(rule))
    }

    fn with(mut self, pattern: Pattern, rule: Rule) -> Self {
        self.rules.push((pattern, rule));
        self
    }

    /// Builds the table for look-ups. Fails with [`Error::Invalid`], which names the invalid rule
    /// and the reason.
    pub(crate) fn build(self) -> Result<Table, Error> {
        for (n, (pattern, _)) in self.rules.iter().enumerate() {
            pattern.check()?;
            if self.rules[..n].iter().any(|(other, _)| other == pattern) {
                return Err(Error::Invalid(format!("there are two rules for {pattern}")));
            }
        }
        Table::new(self.default, self.rules)
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<_> = self.rules.iter().map(|(pattern, _)| pattern).collect();
        f.debug_struct("Policies")
            .field("default", &self.default)
            .field("rules", &patterns)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{IdStrategy, OnDuplicate, Store, Style};

    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(86_400);

    fn of(table: &Table, name: &str) -> Policy {
        table.of(name).policy.clone()
    }

    fn refusal(policies: Policies) -> String {
        match policies.build() {
            Err(Error::Invalid(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unset_member_comes_from_next_less_specific_rule() {
        let table = Policies::default()
            // The rules are not added in the order of their specificity.
            .destination("orders.reserve.stock", |policy| {
                policy.style = Style::Reactive
            })
            .prefix("orders.reserve.", |policy| {
                policy.lease = 3 * MINUTE;
                policy.wait = false;
            })
            .prefix("orders.", |policy| {
                policy.lease = 30 * MINUTE;
                policy.on_duplicate = OnDuplicate::Effects;
                policy.retry.max_attempts = 9;
            })
            .default_rule(|policy| {
                policy.on_duplicate = OnDuplicate::Log;
                policy.retry.base = Duration::from_secs(1);
                policy.retry.cap = Duration::from_secs(9);
            })
            .build()
            .unwrap();

        let stock = of(&table, "orders.reserve.stock");
        assert_eq!(stock.style, Style::Reactive);
        assert_eq!(stock.lease, 3 * MINUTE);
        assert!(!stock.wait);
        assert_eq!(stock.on_duplicate, OnDuplicate::Effects);
        assert_eq!(stock.retry.max_attempts, 9);
        assert_eq!(stock.retry.cap, Duration::from_secs(9));

        let other = of(&table, "orders.reserve.other");
        assert_eq!((other.style, other.lease), (Style::Eager, 3 * MINUTE));
        assert_eq!(of(&table, "orders.ship").lease, 30 * MINUTE);
        assert!(of(&table, "orders.ship").wait);
        let elsewhere = of(&table, "billing");
        assert_eq!(
            (elsewhere.on_duplicate, elsewhere.lease),
            (OnDuplicate::Log, Policy::default().lease)
        );
        // The dot belongs to the prefix, so the prefix rule does not apply to `orders`.
        assert_eq!(of(&table, "orders").lease, Policy::default().lease);
    }

    #[test]
    fn contradicting_rules_are_rejected_by_name() {
        let with = |change: fn(&mut Policy)| Policies::default().destination("a.b", change);
        let memory = |change: fn(&mut Policy)| {
            with(change).default_rule(|policy| policy.store = Store::Memory)
        };
        for (policies, what) in [
            (
                memory(|policy| policy.on_duplicate = OnDuplicate::Effects),
                "on_duplicate effects",
            ),
            (
                memory(|policy| policy.style = Style::Reactive),
                "style reactive",
            ),
            (memory(|policy| policy.fingerprint = true), "fingerprint"),
            (memory(|policy| policy.expire = true), "expire"),
            (
                with(|policy| policy.memory_ttl = Duration::MAX),
                "ten years",
            ),
            (
                with(|policy| policy.memory_capacity = 0),
                "capacity of a memory",
            ),
            (with(|policy| policy.retry.max_attempts = 0), "max_attempts"),
            (
                with(|policy| {
                    policy.retry.base = 2 * DAY;
                    policy.retry.cap = DAY;
                }),
                "base of the back-off",
            ),
            (
                with(|policy| policy.id = IdStrategy::Composite(vec![])),
                "no parts",
            ),
            (
                with(|policy| policy.id = IdStrategy::Payload("id".into())),
                "JSON pointer",
            ),
            (
                with(|policy| policy.id = IdStrategy::Header(String::new())),
                "no name",
            ),
            (with(|_| {}).destination("a.b", |_| {}), "two rules"),
        ] {
            let why = refusal(policies);
            assert!(why.contains(what) && why.contains("a.b"), "{what}: {why}");
        }
        assert!(
            refusal(Policies::default().default_rule(|policy| policy.retry.max_attempts = 0))
                .starts_with("default: ")
        );
    }

    #[test]
    fn rule_with_unusable_pattern_is_rejected() {
        let twice = Policies::default()
            .prefix("a.", |_| {})
            .prefix("a.", |_| {});
        assert!(refusal(twice).contains("two rules for destinations \"a.*\""));
        assert!(refusal(Policies::default().prefix("", |_| {})).contains("empty"));
        assert!(refusal(Policies::default().prefix("a.*", |_| {})).contains("without the *"));
        assert!(refusal(Policies::default().destination("a.*", |_| {})).contains("prefix"));
        assert!(refusal(Policies::default().destination("", |_| {})).contains("empty"));
        assert!(refusal(Policies::default().destination("x".repeat(256), |_| {})).contains("255"));
    }

    proptest! {
        /// Goal: the most specific rule wins. Every rule has its own number of attempts, so the
        /// policy shows which rule has won.
        #[test]
        fn most_specific_rule_wins_in_any_order(
            prefixes in prop::collection::btree_set("[ab]{1,4}", 0..6),
            names in prop::collection::btree_set("[ab]{1,5}", 0..4),
            asked in "[ab]{1,6}",
            turn in 0_usize..10,
        ) {
            let mut rules: Vec<(bool, String)> =
                prefixes.iter().map(|prefix| (true, prefix.clone())).collect();
            rules.extend(names.iter().map(|name| (false, name.clone())));
            let places = rules.len().max(1);
            rules.rotate_left(turn % places);
            let mut policies =
                Policies::default().default_rule(|policy| policy.retry.max_attempts = 1);
            for (n, (is_prefix, name)) in rules.iter().enumerate() {
                let attempts = n as u32 + 2;
                let rule = move |policy: &mut Policy| policy.retry.max_attempts = attempts;
                policies = match is_prefix {
                    true => policies.prefix(name.as_str(), rule),
                    false => policies.destination(name.as_str(), rule),
                };
            }
            let expected = rules
                .iter()
                .enumerate()
                .filter(|(_, (is_prefix, name))|
                    if *is_prefix { asked.starts_with(name.as_str()) } else { asked == *name })
                .max_by_key(|(_, (is_prefix, name))| (!is_prefix, name.len()))
                .map_or(1, |(n, _)| n as u32 + 2);
            prop_assert_eq!(of(&policies.build().unwrap(), &asked).retry.max_attempts, expected);
        }
    }
}
