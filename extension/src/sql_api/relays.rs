//! The function of the relays that is not written in SQL (sql/api/relays.sql).

use super::Report;
use crate::wake::{deadline, wait_for_effects};
use pgrx::prelude::*;

#[pg_extern(sql = false)]
fn idem_relay_wait(timeout_ms: Option<i32>) -> Report<bool> {
    Ok(wait_for_effects(deadline(timeout_ms)?))
}
