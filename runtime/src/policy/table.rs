//! The table in which the policy of a destination is looked up. The policy of each rule already
//! includes the less specific rules.

use std::sync::Arc;

use crate::{
    Error,
    memory::Memory,
    policy::{Policy, Store, check::check, pattern::Pattern},
};

/// A rule: a change of the policy of the next less specific rule.
pub(super) type Rule = Arc<dyn Fn(&mut Policy) + Send + Sync>;

/// The policy of every destination. A look-up allocates nothing, because all entries are created
/// with the table.
#[derive(Debug)]
pub(crate) struct Table {
    /// The most specific rule comes last.
    rules: Vec<(Pattern, Arc<Entry>)>,
    default: Arc<Entry>,
}

/// The policy of one rule.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) policy: Policy,
    /// The messages that the destinations of this rule have handled, if they are kept in memory.
    pub(crate) memory: Option<Memory>,
}

impl Table {
    pub(super) fn new(default: Policy, mut rules: Vec<(Pattern, Rule)>) -> Result<Self, Error> {
        let mut table = Self {
            rules: Vec::with_capacity(rules.len()),
            default: Entry::new("default", default)?,
        };
        // The entry of a rule is built from the less specific rules, which are in the table before
        // it.
        rules.sort_by_key(|(pattern, _)| pattern.specificity());
        for (pattern, rule) in rules {
            let mut policy = table.of(pattern.name()).policy.clone();
            rule(&mut policy);
            let entry = Entry::new(&pattern.to_string(), policy)?;
            table.rules.push((pattern, entry));
        }
        Ok(table)
    }

    pub(crate) fn of(&self, name: &str) -> &Arc<Entry> {
        let mut most_specific_first = self.rules.iter().rev();
        most_specific_first
            .find(|(pattern, _)| pattern.takes(name))
            .map_or(&self.default, |(_, entry)| entry)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            default: Arc::new(Entry {
                policy: Policy::default(),
                memory: None,
            }),
        }
    }
}

impl Entry {
    fn new(rule_name: &str, policy: Policy) -> Result<Arc<Self>, Error> {
        check(&policy).map_err(|why| Error::Invalid(format!("{rule_name}: {why}")))?;
        let memory = (policy.store == Store::Memory)
            .then(|| Memory::new(policy.memory_capacity, policy.memory_ttl));
        Ok(Arc::new(Self { policy, memory }))
    }
}
