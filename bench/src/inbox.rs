//! The hand-written inbox: one table, ON CONFLICT DO NOTHING, and a DELETE by age.

use anyhow::{Result, ensure};

use super::side::{DESTINATION, Order};
use super::wire::Session;

/// The number of rows of one DELETE. It is small, so that locks are held only for a short time.
const DELETE_ROWS: u64 = 1_000;

/// The statement that creates the table.
pub const TABLE: &str = "CREATE TABLE inbox (
    message_id  text        NOT NULL,
    destination text        NOT NULL,
    claimed_at  timestamptz NOT NULL DEFAULT now()
)";

/// The statements that create the key, and the index for the DELETE by age.
pub const INDEXES: [&str; 2] = [
    "ALTER TABLE inbox ADD PRIMARY KEY (message_id, destination)",
    "CREATE INDEX inbox_claimed_at ON inbox (claimed_at)",
];

/// Creates the table and its indexes.
pub fn create(session: &mut Session) -> Result<()> {
    for statement in [TABLE].into_iter().chain(INDEXES) {
        session.run(statement)?;
    }
    Ok(())
}

/// Fills the table with random ids in the order of time, so that the indexes have the shape that
/// they have after a long time of use.
pub fn fill(session: &mut Session, claims: u64) -> Result<()> {
    session.run(&format!(
        "INSERT INTO inbox
         SELECT gen_random_uuid()::text, '{DESTINATION}', now() - ({claims} - n) * interval '1 ms'
           FROM generate_series(1, {claims}) n"
    ))?;
    session.run("VACUUM (ANALYZE) inbox")?;
    Ok(())
}

/// Returns ids that are retained now and for some more time. They are not in the oldest quarter of
/// the inbox.
pub fn sample(session: &mut Session, ids: u64, order: Order) -> Result<Vec<String>> {
    let order = match order {
        Order::Random => "random()",
        Order::OfTime => "claimed_at",
    };
    session.column(&format!(
        "SELECT message_id
           FROM (SELECT * FROM inbox TABLESAMPLE SYSTEM (10)
                  WHERE claimed_at > (SELECT min(claimed_at)
                                             + (max(claimed_at) - min(claimed_at)) / 4
                                        FROM inbox)
                  ORDER BY random() LIMIT {ids}) known
          ORDER BY {order}"
    ))
}

/// Deletes the `claims` oldest rows in batches, each in its own transaction.
///
/// The caller passes the number of claims that were made since the last deletion. So the number of
/// retained rows stays the same, whatever the speed of the machine. The oldest rows stand for the
/// rows that would have expired by their age.
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

/// Returns the number of rows in the inbox.
pub fn retained(session: &mut Session) -> Result<u64> {
    session.value("SELECT count(*) FROM inbox")
}

/// Returns the bytes of the inbox, including indexes and TOAST.
pub fn bytes(session: &mut Session) -> Result<u64> {
    session.value("SELECT pg_total_relation_size('inbox')")
}
