//! Tests of leases, with which messages are processed outside the transaction of the claim, and of
//! the rotation of the tables of pending messages.

mod attempts;
mod fencing;
mod locks;
mod presence;
mod rotation;
