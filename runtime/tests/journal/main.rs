//! Tests of the journal of external calls, on a real server.

#[path = "../lease/fixtures.rs"]
#[allow(dead_code, reason = "other test programs use more of this module")]
mod fixtures;
mod leases;
mod once;
mod replies;
mod stops;
mod unknown;
