//! The priority of a process of a server, for a machine with busy processors.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A nice value. A process with a lower value gets more processor time.
const PRIORITY: &str = "-15";

/// Raises the priority of a process of a server. Returns false when this is not possible: this
/// process needs `CAP_SYS_NICE`, and the process of the server must not have ended.
///
/// A process that holds a lock for some milliseconds of processor time holds it for hundreds of
/// milliseconds when sixty other processes are ready to run. A test of locks raises the priority of
/// the holder, so that it measures how long the lock is held, and not how long the holder waits for
/// the processor.
#[must_use]
pub fn prioritize(pid: i32) -> bool {
    let pid = pid.to_string();
    let renice = Command::new("renice")
        .args(["-n", PRIORITY, "-p", &pid])
        .output();
    // Where Linux groups processes by session, as sched(7) describes, a nice value has an effect
    // only within the group. Each process of a server has its own session.
    let group = PathBuf::from(format!("/proc/{pid}/autogroup"));
    renice.is_ok_and(|output| output.status.success())
        && (!group.exists() || fs::write(group, PRIORITY).is_ok())
}
