//! The external services. They cannot take part in a transaction, and they record every request
//! that they have executed.

mod carrier;
mod gateway;
mod web;

pub use carrier::{Booking, Carrier};
pub use gateway::{Charge, Gateway, Order};
