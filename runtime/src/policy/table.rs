//! The table in which the policy of a destination is looked up. The policy of each rule already
//! includes the less specific rules.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use idem_client::Destination;

use crate::{
    Error,
    memory::Memory,
    policy::{Policy, Store, check::check, pattern::Pattern},
};

/// The time to live of a memory, if neither a time to live nor a retention is configured.
const MEMORY_TTL: Duration = Duration::from_secs(3600);

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
    /// The prefix rules and the default rule, if they set a retention themselves. The database
    /// needs the name of each destination, so such a retention is applied only to destinations with
    /// a rule of their own.
    open_retentions: Vec<String>,
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
        let mut open_retentions = Vec::new();
        if default.retention.is_some() {
            open_retentions.push("default".to_owned());
        }
        let mut table = Self {
            exact: HashMap::new(),
            prefixes: Vec::new(),
            default: Entry::new("default", default)?,
            open_retentions,
        };
        // Add shorter prefixes first and exact names last, because the entry of a rule is built
        // from the less specific rules in the table.
        rules.sort_by_key(|(pattern, _)| match pattern {
            Pattern::Prefix(prefix) => prefix.len(),
            Pattern::Exact(_) => usize::MAX,
        });
        for (pattern, rule) in rules {
            let rule_name = pattern.to_string();
            let name = match &pattern {
                Pattern::Exact(name) | Pattern::Prefix(name) => name,
            };
            let mut policy = table.of(name).policy.clone();
            rule(&mut policy);
            let entry = Entry::new(&rule_name, policy)?;
            match pattern {
                Pattern::Exact(name) => {
                    table.exact.insert(name, entry);
                }
                Pattern::Prefix(prefix) => {
                    let mut alone = Policy::default();
                    rule(&mut alone);
                    if alone.retention.is_some() {
                        table.open_retentions.push(rule_name);
                    }
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

    /// Returns the destinations that have a rule of their own, store their claims in the database,
    /// and get a retention from some rule.
    pub(crate) fn retentions(&self) -> Result<Vec<(Destination, Duration)>, Error> {
        let mut all = Vec::new();
        for (name, entry) in &self.exact {
            if let (Store::Database, Some(retention)) = (entry.policy.store, entry.policy.retention)
            {
                all.push((Destination::new(name.as_str())?, retention));
            }
        }
        all.sort();
        Ok(all)
    }

    /// Returns the rules with a retention that is not applied to destinations without a rule of
    /// their own.
    pub(crate) fn open_retentions(&self) -> &[String] {
        &self.open_retentions
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
            open_retentions: Vec::new(),
        }
    }
}

impl Entry {
    fn new(rule_name: &str, policy: Policy) -> Result<Arc<Self>, Error> {
        check(&policy).map_err(|why| Error::Invalid(format!("{rule_name}: {why}")))?;
        let memory = (policy.store == Store::Memory).then(|| {
            let ttl = policy.memory_ttl.or(policy.retention).unwrap_or(MEMORY_TTL);
            Memory::new(policy.memory_capacity, ttl)
        });
        Ok(Arc::new(Self { policy, memory }))
    }
}
