//! The table in which the policy of a destination is looked up. The policy of each rule already
//! includes the less specific rules.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

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
    exact: HashMap<String, Arc<Entry>>,
    /// The longest prefix comes first.
    prefixes: Vec<(String, Arc<Entry>)>,
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
            exact: HashMap::new(),
            prefixes: Vec::new(),
            default: Entry::new("default", default)?,
        };
        // Add shorter prefixes first and exact names last, because the entry of a rule is built
        // from the less specific rules in the table.
        rules.sort_by_key(|(pattern, _)| match pattern {
            Pattern::Prefix(prefix) => prefix.len(),
            Pattern::Exact(_) => usize::MAX,
        });
        for (pattern, rule) in rules {
            let name = match &pattern {
                Pattern::Exact(name) | Pattern::Prefix(name) => name,
            };
            let mut policy = table.of(name).policy.clone();
            rule(&mut policy);
            let entry = Entry::new(&pattern.to_string(), policy)?;
            match pattern {
                Pattern::Exact(name) => {
                    table.exact.insert(name, entry);
                }
                Pattern::Prefix(prefix) => {
                    table.prefixes.push((prefix, entry));
                    table
                        .prefixes
                        .sort_by_key(|(prefix, _)| Reverse(prefix.len()));
                }
            }
        }
        Ok(table)
    }

    pub(crate) fn of(&self, name: &str) -> &Arc<Entry> {
        let by_prefix = || {
            self.prefixes
                .iter()
                .find(|(prefix, _)| name.starts_with(prefix.as_str()))
        };
        match self.exact.get(name) {
            Some(entry) => entry,
            None => by_prefix().map_or(&self.default, |(_, entry)| entry),
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            prefixes: Vec::new(),
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
