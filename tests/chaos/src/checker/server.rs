//! Checks the logs and the statistics of the servers.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::violation::{Errors, Violation};
use crate::server_log::{LOOK, Processes};
use crate::watch::Watched;

/// Adds the counts of the errors in the log and in the statistics. `relations` contains the OIDs of
/// the relations in schema `idem`.
pub(super) fn check(log: &str, relations: &BTreeSet<u32>, watched: &Watched, errors: &mut Errors) {
    // When a condition was not checked, its row is missing, so the ledger does not pass.
    errors.extend(
        watched
            .forgotten
            .map(|count| (Violation::ForgottenEarly, count)),
    );
    errors.extend(
        watched
            .updated_rows
            .map(|count| (Violation::UpdatedRow, count)),
    );
    errors.insert(Violation::ServerCrashed, crashes(log));
    if watched.workers.is_empty() {
        return;
    }
    let waits = waits(log, relations, &watched.workers);
    for wait in waits.iter().take(3) {
        eprintln!("wait for a lock held by maintenance: {wait}");
    }
    errors.extend([
        (Violation::MaintenanceWait, waits.len() as u64),
        (
            Violation::MaintenanceDeadlock,
            deadlocks(log, &watched.workers),
        ),
    ]);
}

/// Returns the log lines about a wait for a lock that maintenance held on a relation of idem. Waits
/// of sessions that read sizes and progress are omitted: these sessions open every table, which
/// claims, leases, relays and producers do not.
fn waits(log: &str, relations: &BTreeSet<u32>, workers: &BTreeSet<i32>) -> Vec<String> {
    let looks = format!("({LOOK}) LOG:");
    let mut processes = Processes::new(workers);
    let mut lines = log.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        processes.read(line);
        let is_of_idem = number_after(line, " on relation ")
            .is_some_and(|relation| relations.contains(&relation));
        if !is_of_idem || !line.contains("still waiting for") || line.contains(&looks) {
            continue;
        }
        let Some(detail) = lines.next_if(|detail| detail.contains("holding the lock: ")) else {
            continue;
        };
        if held_by(detail)
            .into_iter()
            .any(|pid| processes.is_maintenance(pid))
        {
            found.push(format!("{line} / {detail}"));
        }
    }
    found
}

/// Returns the lock holders in a line such as "Process holding the lock: 1. Wait queue: 2."
fn held_by(detail: &str) -> Vec<i32> {
    detail
        .split_once("holding the lock: ")
        .and_then(|(_, rest)| rest.split_once(". Wait queue"))
        .map(|(pids, _)| {
            pids.split(", ")
                .filter_map(|pid| pid.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

/// Counts deadlocks in which a maintenance process waited or was the blocker.
fn deadlocks(log: &str, workers: &BTreeSet<i32>) -> u64 {
    let mut processes = Processes::new(workers);
    let mut lines = log.lines().peekable();
    let mut found = 0;
    while let Some(line) = lines.next() {
        processes.read(line);
        if !line.contains("deadlock detected") {
            continue;
        }
        let mut takes_part = false;
        while let Some(edge) = lines.next_if(|line| line.contains(" waits for ")) {
            takes_part |= named_in(edge)
                .into_iter()
                .any(|pid| processes.is_maintenance(pid));
        }
        found += u64::from(takes_part);
    }
    found
}

/// Counts the server processes that were terminated by a signal. Signal 9 is not counted, because
/// the campaign sends it. A process that has logged a PANIC, for example because the disk was full,
/// is not counted either.
fn crashes(log: &str) -> u64 {
    let mut panicked = BTreeSet::new();
    let mut found = 0;
    for line in log.lines() {
        if line.contains(" PANIC:  ") {
            panicked.extend(number_after::<i32>(line, "["));
        } else if let Some(signal) = number_after::<i32>(line, " was terminated by signal ") {
            let has_panicked =
                number_after::<i32>(line, "(PID ").is_some_and(|pid| panicked.remove(&pid));
            if signal != 9 && !has_panicked {
                eprintln!("crash of a server process: {line}");
                found += 1;
            }
        }
    }
    found
}

/// Returns the number that follows the first occurrence of `text`.
fn number_after<N: FromStr>(line: &str, text: &str) -> Option<N> {
    let (_, rest) = line.split_once(text)?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Returns the processes in a line such as "Process 1 waits for ShareLock on ...; blocked by
/// process 2."
fn named_in(edge: &str) -> Vec<i32> {
    let number = |rest: &str| {
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    edge.split("rocess ").skip(1).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: &str = "2026 [9] 00000 (client backend) (app) LOG:  process 9 still waiting for \
        RowExclusiveLock on relation 5 of database 1 after 100 ms\n\
        2026 [9] 00000 (client backend) (app) DETAIL:  \
        Processes holding the lock: 7, 8. Wait queue: 9.\n";
    const DEADLOCK: &str = "2026 [9] 40P01 (client backend) (app) ERROR:  deadlock detected\n\
        2026 [9] 40P01 (client backend) (app) DETAIL:  \
        Process 9 waits for ShareLock on relation 5 of database 1; blocked by process 7.\n\
        \tProcess 7 waits for ShareLock on transaction 2; blocked by process 9.\n\
        \tProcess 6: SELECT 'that waits'\n";

    /// Counts the waits for relation 5.
    fn count(log: &str, workers: &[i32]) -> usize {
        waits(
            log,
            &BTreeSet::from([5]),
            &workers.iter().copied().collect(),
        )
        .len()
    }

    fn connected(pid: i32, application: &str) -> String {
        format!(
            "2026 [{pid}] 00000 (client backend) ([unknown]) LOG:  connection authorized: \
             user=postgres database=postgres application_name={application}\n"
        )
    }

    fn gone(pid: i32) -> String {
        format!(
            "2026 [{pid}] 00000 (client backend) (app) LOG:  disconnection: \
             session time: 0:00:01.000 user=postgres\n"
        )
    }

    /// A client that has the process id of a former worker is not taken for maintenance.
    #[test]
    fn reused_pid_of_a_client_is_not_maintenance() {
        let log = connected(8, "campaign") + WAIT;
        assert_eq!(count(&log, &[8]), 0);
        let log = connected(8, "maintenance") + &gone(8) + &connected(8, "campaign") + WAIT;
        assert_eq!(count(&log, &[6]), 0);
        // After a restart the clients of the old server are gone.
        let log = connected(8, "campaign")
            + "2026 [1] 00000 (postmaster) LOG:  starting PostgreSQL 15\n"
            + WAIT;
        assert_eq!(count(&log, &[8]), 1);
    }

    /// A deadlock is counted only if maintenance waits or blocks in it.
    #[test]
    fn deadlock_counts_when_maintenance_takes_part() {
        for pid in [7, 9] {
            assert_eq!(deadlocks(DEADLOCK, &BTreeSet::from([pid])), 1, "{pid}");
        }
        assert_eq!(deadlocks(DEADLOCK, &BTreeSet::from([6])), 0);
    }

    /// A process that was terminated by a signal is a crash, unless the signal was SIGKILL or the
    /// process has logged a PANIC.
    #[test]
    fn signalled_process_counts_unless_killed() {
        let ended = |signal: &str| {
            format!(
                "2026 [1] 00000 (postmaster) () LOG:  \
                 server process (PID 7) was terminated by signal {signal}\n"
            )
        };
        for signal in ["6: Aborted", "11: Segmentation fault"] {
            assert_eq!(crashes(&ended(signal)), 1, "{signal}");
        }
        assert_eq!(crashes(&ended("9: Killed")), 0);
        let panic =
            "2026 [7] 53100 (walwriter) () PANIC:  could not write: No space left on device\n";
        assert_eq!(crashes(&format!("{panic}{}", ended("6: Aborted"))), 0);
        // A PANIC excuses only one process: a later process with the same process id is counted.
        assert_eq!(crashes(&format!("{panic}{0}{0}", ended("6: Aborted"))), 1);
    }

    /// A row that was not checked is missing in the ledger. It does not appear with a count of
    /// zero.
    #[test]
    fn unchecked_rows_are_missing() {
        let mut errors = Errors::new();
        check("", &BTreeSet::new(), &Watched::default(), &mut errors);
        assert_eq!(errors, Errors::from([(Violation::ServerCrashed, 0)]));
    }
}
