//! What the servers have logged and counted.

use std::collections::BTreeSet;

use super::{Errors, Violation};
use crate::chaos::watch::Watched;

pub(super) fn check(log: &str, watched: &Watched, errors: &mut Errors) {
    let waits = waits(log, &watched.maintainers);
    for wait in waits.iter().take(3) {
        eprintln!("a wait for the maintenance: {wait}");
    }
    // What was not looked at is missing in the ledger, and red.
    errors.extend(watched.forgotten.map(|count| (Violation::ForgottenEarly, count)));
    errors.insert(Violation::UpdatedRow, watched.updated_rows);
    if !watched.maintainers.is_empty() {
        errors.extend([
            (Violation::MaintenanceWait, waits.len() as u64),
            (Violation::MaintenanceDeadlock, deadlocks(log, &watched.maintainers)),
        ]);
    }
}

/// Waits for a lock on a relation that one of these processes held. Rows and transactions are left
/// out: a backend of a client can get the number of a process that is gone.
fn waits(log: &str, holders: &BTreeSet<i32>) -> Vec<String> {
    let lines: Vec<&str> = log.lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].contains("still waiting for") && pair[0].contains(" on relation "))
        .filter(|pair| held_by(pair[1]).iter().any(|pid| holders.contains(pid)))
        .map(|pair| pair.join(" / "))
        .collect()
}

/// The processes of a line such as "Process holding the lock: 1. Wait queue: 2."
fn held_by(detail: &str) -> Vec<i32> {
    detail
        .split_once("holding the lock: ")
        .and_then(|(_, rest)| rest.split_once(". Wait queue"))
        .map(|(pids, _)| pids.split(", ").filter_map(|pid| pid.parse().ok()).collect())
        .unwrap_or_default()
}

/// Deadlocks over relations in which one of these processes took part.
fn deadlocks(log: &str, processes: &BTreeSet<i32>) -> u64 {
    let mut lines = log.lines().peekable();
    let mut found = 0;
    while let Some(line) = lines.next() {
        if !line.contains("deadlock detected") {
            continue;
        }
        let mut names_one = false;
        while let Some(line) = lines.next_if(|line| line.contains("waits for")) {
            let blocker = line
                .rsplit_once("blocked by process ")
                .and_then(|(_, pid)| pid.trim_end_matches('.').parse().ok());
            names_one |= line.contains(" on relation ") && blocker.is_some_and(|pid| processes.contains(&pid));
        }
        found += u64::from(names_one);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: &str = "2026 [9] LOG:  process 9 still waiting for RowExclusiveLock on relation 5 of database 1 after 100 ms\n\
        2026 [9] DETAIL:  Processes holding the lock: 7, 8. Wait queue: 9.\n";
    const DEADLOCK: &str = "2026 [9] ERROR:  deadlock detected\n\
        2026 [9] DETAIL:  Process 9 waits for ShareLock on relation 5 of database 1; blocked by process 7.\n\
        \tProcess 7 waits for ShareLock on transaction 2; blocked by process 9.\n";

    #[test]
    fn wait_counts_when_the_maintenance_holds_the_lock() {
        assert_eq!(waits(WAIT, &BTreeSet::from([8])).len(), 1);
        assert_eq!(waits(WAIT, &BTreeSet::from([9])).len(), 0);
        let transaction = WAIT.replace("relation 5 of database 1", "transaction 5");
        assert_eq!(waits(&transaction, &BTreeSet::from([8])).len(), 0);
    }

    #[test]
    fn deadlock_counts_when_the_maintenance_takes_part() {
        assert_eq!(deadlocks(DEADLOCK, &BTreeSet::from([7])), 1);
        assert_eq!(deadlocks(DEADLOCK, &BTreeSet::from([6])), 0);
    }
}
