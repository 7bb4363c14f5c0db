//! Work outside the transaction: what a lease promises, and what a turn of the tables keeps.

mod attempts;
mod fencing;
mod locks;
mod presence;
mod turns;
