//! Tests of leases on a real server: the functions, the renewal, handlers that run without a
//! transaction, and consumers with such handlers.

mod calls;
mod cancel;
mod checked;
mod consumer;
mod counted;
mod fixtures;
mod process;
mod renewal;
