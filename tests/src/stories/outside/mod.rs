//! The world outside: what cannot take part in a transaction, and remembers what was done to it.

mod carrier;
mod gateway;
mod web;

pub use carrier::{Booking, Carrier};
pub use gateway::{Charge, Gateway, Order};
