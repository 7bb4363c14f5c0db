//! Pending messages: identities that are not done. Each identity has one row, which is ready,
//! leased, waiting for a retry, or dead. It is not handed out before its `due_at`. The claim that
//! completes the message deletes the row.
//!
//! **A lease of `idem_acquire` and a claim never both succeed.** Each first writes its own row, and
//! then looks for the row of the other with a dirty snapshot. So at least the later of the two sees
//! the row of the earlier.
//!
//! - A claim ([`check`]) writes its row in the inbox, and then looks at the pending row. If it
//!   finds a lease, it deletes its rows and is `in_progress`, or it fails with 55P03 if it waits
//!   for claims. It waits for a change in progress in the same way. In every other state it deletes
//!   the pending row.
//! - [`acquire`] writes a speculative pending row, or locks the existing one, and then looks at the
//!   inbox. A claim makes the message a `duplicate`. A claim in progress makes it `in_progress`,
//!   without a wait, so only the claim can wait for the lease.
//! - [`receive`](self::receive) writes a speculative pending row, and then looks at the inbox.
//!   After a claim the message is known. During a claim in progress it removes its row, waits, and
//!   looks again.
//! - `complete.rs` locks the pending row, compares the token, and then claims. Another token or no
//!   row is 55000. A claim in progress is 55P03, without a wait.
//!
//! The first look of a claim is only there so that it writes nothing when it finds a lease: its
//! deleted row would look like a claim in progress until its transaction ends, and the holder of
//! the lease could not complete the message. During the look at the inbox a new pending row is
//! speculative: it can be removed as if it had never existed, and a claim that waits for it
//! continues. So a lease or a receiver never waits for a claim while it holds a lock that the claim
//! may wait for.
//!
//! A received message that has a pending row need not check the inbox: a committed claim would have
//! deleted the row, and a claim in progress locks it after its insert. A message that `idem_next`
//! handed out may be claimed in spite of its lease, so its consumer completes it with
//! `idem_try_claim`. An expired lease stays usable until another transaction leases or claims the
//! message, or makes it a dead letter.
//!
//! Transactions lock in this order: `idem.ring`, a new destination, the claims in the order of
//! their keys, the pending row, the dead letter. `idem_complete` and the functions for dead letters
//! lock the pending row first, and do not wait for a claim after that. `idem_next` locks the table
//! of pending messages, then `idem.ring`, the row of the destination, and pending rows without
//! waiting. Functions that work on many messages skip those that another transaction holds, except
//! batches of claims and `idem_hand_over`. Two transactions that claim several messages in
//! different orders can deadlock (40P01).
//!
//! All functions use the clock of the server and the latest committed state. The functions that
//! also execute SQL need READ COMMITTED for this; the others work at every isolation level.

pub mod acquire;
mod check;
mod due;
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
