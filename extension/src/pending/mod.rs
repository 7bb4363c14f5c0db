//! Pending messages: identities that are not done. Each identity has one row, which is ready,
//! leased, waiting for a retry, or dead.
//!
//! A lease and a claim of a message never both succeed, because each first writes a row and then
//! looks for the row of the other with a dirty snapshot. A claim inserts into the inbox and then
//! checks the pending messages. A lease or a received message inserts a pending row, or locks it,
//! and then checks the inbox. So at least the later of the two sees the row of the earlier. A claim
//! also looks at the pending row before its insert, so that it writes nothing if it finds a lease.
//! A received message that has a pending row need not check the inbox: a committed claim would have
//! deleted the row, and a claim in progress locks it after its insert. During the check of the
//! inbox a new pending row is still speculative. If there is a claim, the pending row is removed as
//! if it had never existed, and a claim that waits for the row continues. So a lease or a receiver
//! never waits for a claim while it holds a lock that the claim may wait for.
//!
//! Transactions lock in this order: claim, pending row, dead letter. `idem_complete` and the
//! functions for dead letters are the exceptions. They lock the pending row first, and do not wait
//! for a claim after that. All functions use the clock of the server and the latest committed
//! state. The functions that also execute SQL need READ COMMITTED for this; the others work at
//! every isolation level.

pub mod acquire;
mod check;
mod due;
pub mod failures;
pub mod lease;
pub mod next;
mod payloads;
pub mod policy;
pub mod presence;
pub mod receive;
mod row;
mod scan_start;
mod search;
pub mod tables;
pub mod wait;

pub use check::{PendingCheck, PendingState, delete_pending};
pub use lease::ensure_leased;
