//! Work that is not done: one row an identity that is leased, waits, rests after a failure, or is dead.
//!
//! A lease and a claim never both win, because each writes first and then looks at the other with a dirty snapshot: a claim
//! inserts into the inbox and looks at work; a lease or a received message inserts into work, or locks its row there, and
//! looks at the inbox. At least the later of two sees the earlier. While it looks, a row of work is still in the making
//! (speculative): one that gives way was never there, and a claim that waits for it waits no longer. So this side never
//! waits for a claim while it holds anything that the claim may wait for.
//!
//! Everything goes by the clock of the server and by what is committed now, at every isolation level.

mod acquire;
mod api;
mod complete;
mod glance;
mod identity;
mod inbox;
mod policy;
mod receive;
mod row;
mod tables;

pub use complete::ensure_leased;
pub use glance::{Glance, Standing};
pub use identity::Identity;
