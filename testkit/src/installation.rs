//! The identity of an installation, for tests that compare ids of two databases.

/// Gives a database a fixed identity, so that message ids and idempotency keys are the same in each
/// run. The statements must run in one transaction.
pub const FIX_INSTALLATION: &str = "
    UPDATE idem.installation SET installation = '01010101-0101-0101-0101-010101010101';
    UPDATE idem.clock SET installation = '01010101-0101-0101-0101-010101010101';
    UPDATE idem.pending_rotation SET installation = '01010101-0101-0101-0101-010101010101';
    UPDATE idem.payload_rotation SET installation = '01010101-0101-0101-0101-010101010101';
    UPDATE idem.ring SET installation = '01010101-0101-0101-0101-010101010101'";
