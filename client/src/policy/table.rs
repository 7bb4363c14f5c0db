//! Policies as they are looked up: each rule is already laid over those that are less exact.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use crate::{
    Destination, Error, Policy, Rule, Store,
    memory::Memory,
    policy::{check::check, policies::Pattern},
};

/// How long a memory remembers when nobody says.
const MEMORY_TTL: Duration = Duration::from_secs(3600);

/// The policy of every destination. A look-up allocates nothing: what a destination has is made
/// with the table.
#[derive(Debug)]
pub(crate) struct Table {
    exact: HashMap<String, Arc<Entry>>,
    /// The longest prefix first.
    prefixes: Vec<(String, Arc<Entry>)>,
    default: Arc<Entry>,
    /// Rules with a retention of their own that the database cannot be told: it knows names only.
    open_retentions: Vec<String>,
}

/// What one rule comes to.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) policy: Policy,
    /// What the destinations of this rule have handled, when they keep it in memory.
    pub(crate) memory: Option<Memory>,
}

impl Table {
    pub(crate) fn new(default: &Rule, mut rules: Vec<(Pattern, Rule)>) -> Result<Self, Error> {
        let mut open_retentions = Vec::new();
        if default.has_retention() {
            open_retentions.push("default".to_owned());
        }
        let everywhere = default.over(&Policy::default());
        let mut table = Self {
            exact: HashMap::new(),
            prefixes: Vec::new(),
            default: Entry::new("default", everywhere)?,
            open_retentions,
        };
        // Shorter prefixes first, exact names last: what a rule is laid over is there already.
        rules.sort_by_key(|(pattern, _)| match pattern {
            Pattern::Prefix(prefix) => prefix.len(),
            Pattern::Exact(_) => usize::MAX,
        });
        for (pattern, rule) in rules {
            let whose = pattern.to_string();
            let name = match &pattern {
                Pattern::Exact(name) | Pattern::Prefix(name) => name,
            };
            let entry = Entry::new(&whose, rule.over(&table.of(name).policy))?;
            match pattern {
                Pattern::Exact(name) => {
                    table.exact.insert(name, entry);
                }
                Pattern::Prefix(prefix) => {
                    if rule.has_retention() {
                        table.open_retentions.push(whose);
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

    /// The destinations with a rule of their own that are kept in the database for a time that some
    /// rule gives.
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

    /// The rules whose retention is for names that nobody has listed.
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
    fn new(whose: &str, policy: Policy) -> Result<Arc<Self>, Error> {
        check(&policy).map_err(|why| Error::Invalid(format!("{whose}: {why}")))?;
        let memory = (policy.store == Store::Memory).then(|| {
            let ttl = policy.memory_ttl.or(policy.retention).unwrap_or(MEMORY_TTL);
            Memory::new(policy.memory_capacity, ttl)
        });
        Ok(Arc::new(Self { policy, memory }))
    }
}
