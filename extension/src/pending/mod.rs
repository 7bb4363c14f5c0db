//! Pending messages: identities that are not done. Each has one row: ready, leased, waiting for a
//! retry, or dead.
//!
//! A lease and a claim never both win, because each writes first and then looks at the other with a
//! dirty snapshot: a claim inserts into the inbox and looks at the pending messages; a lease or a
//! received message inserts a pending row, or locks it, and looks at the inbox. At least the later
//! of two sees the earlier. While it looks, a new pending row is still speculative: one that gives
//! way was never there, and a claim that waits for it waits no longer. So this side never waits for
//! a claim while it holds anything that the claim may wait for.
//!
//! Locks are taken in this order: the claim, the pending row, the dead letter. Everything goes by
//! the clock of the server and by what is committed now, at every isolation level.

pub mod acquire;
mod api;
mod check;
mod complete;
mod due;
pub mod failures;
mod identity;
pub mod inbox;
mod lease;
pub mod next;
mod payloads;
pub mod policy;
pub mod presence;
mod receive;
mod row;
mod scan_start;
mod search;
pub mod tables;
pub mod wait;

pub use check::{PendingCheck, Standing};
pub use complete::ensure_leased;
pub use identity::Identity;
