//! The log of the servers: how it is written, and which of its processes are the maintenance.
//!
//! A server uses the number of a process again after its end, and a wait for a lock names the
//! holder by number alone. The log has the connection and the disconnection of each client, so it
//! says which client a number stands for. Every other number is that of a background process.

use std::collections::{BTreeMap, BTreeSet};

/// What a server needs for a log that the checker can read. `%e` is for the faults.
pub const SETTINGS: [(&str, &str); 5] = [
    ("log_line_prefix", "%m [%p] %e (%b) %q(%a) "),
    ("log_connections", "on"),
    ("log_disconnections", "on"),
    ("log_lock_waits", "on"),
    ("deadlock_timeout", "100ms"),
];

/// The application name of the sessions that look at sizes and at how far the streams are.
pub const LOOK: &str = "look";

/// The application name of the sessions that call the maintenance.
pub const MAINTENANCE: &str = "maintenance";

/// What begins the part of a line between the process and its kind, for a line with this SQLSTATE.
#[must_use]
pub fn with_state(state: &str) -> String {
    format!("] {state} (")
}

/// The processes of a server at one line of its log.
pub struct Processes<'l> {
    /// The numbers of the background workers of idem.
    workers: &'l BTreeSet<i32>,
    /// The clients that are connected, and whether each calls the maintenance.
    clients: BTreeMap<i32, bool>,
}

impl<'l> Processes<'l> {
    /// Those at the beginning of a log.
    #[must_use]
    pub fn new(workers: &'l BTreeSet<i32>) -> Self {
        Self {
            workers,
            clients: BTreeMap::new(),
        }
    }

    /// Goes on to this line.
    pub fn read(&mut self, line: &str) {
        let is_restart = [
            "LOG:  starting PostgreSQL ",
            "LOG:  all server processes terminated",
        ];
        if is_restart.iter().any(|text| line.contains(text)) {
            self.clients.clear();
        }
        let Some(pid) = process_of(line) else { return };
        if line.contains("connection authorized: user=") {
            let calls = line.contains(&format!(" application_name={MAINTENANCE}"));
            self.clients.insert(pid, calls);
        } else if line.contains("LOG:  disconnection: session time: ") {
            self.clients.remove(&pid);
        }
    }

    /// Whether this process is a worker of idem, or a client that calls the maintenance.
    #[must_use]
    pub fn is_maintenance(&self, pid: i32) -> bool {
        let client = self.clients.get(&pid);
        client
            .copied()
            .unwrap_or_else(|| self.workers.contains(&pid))
    }
}

/// The process that has written this line; `None` for a line that continues another.
fn process_of(line: &str) -> Option<i32> {
    let (_, rest) = line.split_once(" [")?;
    rest.split_once(']')?.0.parse().ok()
}
