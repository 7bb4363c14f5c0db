//! Leases around a handler: the lease is acquired before the handler runs, renewed while it runs,
//! and completed after it.
//!
//! [`Idem::process_leased`](crate::Idem::process_leased) and
//! [`Consumer::handle_leased`](crate::Consumer::handle_leased) do all of this. A [`Keeper`] renews
//! a lease that was acquired with [`idem_client::lease::acquire`].

mod keeper;
mod noted;
mod work;

pub use keeper::Keeper;
pub(crate) use keeper::{extend_on, give_back_on};
pub(crate) use noted::{Burial, InterruptedLease, NotedLease};
pub use work::LeaseContext;
