//! Consumers with SeaORM and with diesel-async. `idem_seaorm` and `idem_diesel` are for copying.

pub mod consumers;
pub mod idem_diesel;
pub mod idem_seaorm;
