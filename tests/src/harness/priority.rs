//! The priority of a server's process, on a machine whose processors are all busy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A nice value: the lower, the more of the processor a process gets.
const PRIORITY: &str = "-15";

/// Raises the priority of this process of a server, and returns whether that was possible. It needs
/// `CAP_SYS_NICE`, and a process that has not ended.
///
/// What holds a lock for some milliseconds of processor time holds it for hundreds when sixty
/// others want the processor. A test of locks raises the priority of the holder, so that it
/// measures how long the lock is held, and not how long the holder waits for the processor.
#[must_use]
pub fn prioritize(pid: i32) -> bool {
    let pid = pid.to_string();
    let renice = Command::new("renice")
        .args(["-n", PRIORITY, "-p", &pid])
        .output();
    // Where Linux groups processes by session, as sched(7) describes, a nice value counts within
    // the group alone. Each process of a server is a session of its own.
    let group = PathBuf::from(format!("/proc/{pid}/autogroup"));
    renice.is_ok_and(|output| output.status.success())
        && (!group.exists() || fs::write(group, PRIORITY).is_ok())
}
