//! Functions that the SQL of the relays cannot implement.

use pgrx::prelude::*;

/// Returns the transaction id that the next transaction will get. All running transactions have
/// smaller ids.
// The result is an i64, because xid8 and int8 are the same 64 bits to the function manager.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.next_xid() RETURNS xid8 LANGUAGE c AS 'MODULE_PATHNAME', 'next_xid_wrapper';
"#
)]
fn next_xid() -> i64 {
    // SAFETY: reads shared memory under its lock.
    unsafe { pg_sys::ReadNextFullTransactionId() }.value as i64
}
