//! What people write by hand: one table, ON CONFLICT DO NOTHING, and a DELETE by age.

use anyhow::{Result, ensure};

use super::side::DESTINATION;
use super::wire::Session;

/// Rows of one DELETE: small enough to hold no lock for long.
const DELETE_ROWS: u64 = 1_000;

/// Makes the table and its indexes.
pub fn create(session: &mut Session) -> Result<()> {
    session.run(
        "CREATE TABLE inbox (
            message_id  text        NOT NULL,
            destination text        NOT NULL,
            claimed_at  timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (message_id, destination)
        )",
    )?;
    session.run("CREATE INDEX inbox_claimed_at ON inbox (claimed_at)")?;
    Ok(())
}

/// Fills it in the order of time, with random ids: the indexes look as after a long life.
pub fn fill(session: &mut Session, claims: u64) -> Result<()> {
    session.run(&format!(
        "INSERT INTO inbox SELECT gen_random_uuid()::text, '{DESTINATION}', now() - ({claims} - n) * interval '1 ms'
           FROM generate_series(1, {claims}) n"
    ))?;
    session.run("VACUUM (ANALYZE) inbox")?;
    Ok(())
}

/// Ids that are remembered and will be for a while: not among the oldest quarter.
pub fn sample(session: &mut Session, ids: u64) -> Result<Vec<String>> {
    session.column(&format!(
        "SELECT message_id FROM inbox TABLESAMPLE SYSTEM (10)
          WHERE claimed_at > (SELECT min(claimed_at) + (max(claimed_at) - min(claimed_at)) / 4 FROM inbox)
          ORDER BY random() LIMIT {ids}"
    ))
}

/// Deletes the oldest, as many as are given, in batches, each a transaction of its own.
///
/// Where as many claims are made as expire, the expired are the oldest: so the number that is
/// retained stays as it is, whatever the rate of this run is.
pub fn forget_oldest(session: &mut Session, claims: u64) -> Result<()> {
    let mut left = claims;
    while left > 0 {
        let rows = left.min(DELETE_ROWS);
        let deleted = session.run(&format!(
            "DELETE FROM inbox WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM inbox WHERE claimed_at < now() ORDER BY claimed_at LIMIT {rows}))"
        ))?;
        ensure!(
            deleted.rows == rows,
            "{} of {rows} rows were deleted",
            deleted.rows
        );
        left -= rows;
    }
    Ok(())
}

/// How many it holds.
pub fn retained(session: &mut Session) -> Result<u64> {
    session.value("SELECT count(*) FROM inbox")
}

/// Heap, indexes and what belongs to them.
pub fn bytes(session: &mut Session) -> Result<u64> {
    session.value("SELECT pg_total_relation_size('inbox')")
}
