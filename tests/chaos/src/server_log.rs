//! The logs of the servers: their format, and the maintenance processes in them.
//!
//! A log line about a wait for a lock names the holder only by its process id (PID), and the
//! operating system reuses the PIDs of ended processes. The log also contains the connection and
//! the disconnection of each client. They show which client has a PID at any line of the log. A PID
//! without a client is a background process.

use std::collections::{BTreeMap, BTreeSet};

/// The server settings for a log that the checker can read. The faults search the log for SQLSTATEs
/// (`%e`).
pub const SETTINGS: [(&str, &str); 5] = [
    ("log_line_prefix", "%m [%p] %e (%b) %q(%a) "),
    ("log_connections", "on"),
    ("log_disconnections", "on"),
    ("log_lock_waits", "on"),
    ("deadlock_timeout", "100ms"),
];

/// The application name of the sessions that read sizes and the progress of the streams.
pub const LOOK: &str = "look";

/// The application name of the sessions that run the maintenance.
pub const MAINTENANCE: &str = "maintenance";

/// Returns the text that identifies a log line with this SQLSTATE: the end of the PID, the
/// SQLSTATE, and the start of the backend type.
#[must_use]
pub fn with_state(state: &str) -> String {
    format!("] {state} (")
}

/// The processes of a server at one line of its log.
pub struct Processes<'l> {
    /// The PIDs of the background workers of idem.
    workers: &'l BTreeSet<i32>,
    /// The PIDs of the connected clients, and whether each runs the maintenance.
    clients: BTreeMap<i32, bool>,
}

impl<'l> Processes<'l> {
    /// Creates the state at the beginning of a log. `workers` contains the PIDs of the background
    /// workers of idem.
    #[must_use]
    pub fn new(workers: &'l BTreeSet<i32>) -> Self {
        Self {
            workers,
            clients: BTreeMap::new(),
        }
    }

    /// Reads the next line of the log.
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

    /// Returns whether this process is a worker of idem, or a client that runs the maintenance.
    #[must_use]
    pub fn is_maintenance(&self, pid: i32) -> bool {
        let client = self.clients.get(&pid);
        client
            .copied()
            .unwrap_or_else(|| self.workers.contains(&pid))
    }
}

/// Returns the PID of the process that wrote this line, or `None` for a continuation line.
fn process_of(line: &str) -> Option<i32> {
    let (_, rest) = line.split_once(" [")?;
    rest.split_once(']')?.0.parse().ok()
}
