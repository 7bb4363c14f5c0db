//! What the tests of several programs do with a ring.

use crate::{Session, until};
use anyhow::Result;

/// The number of sealed slices of a ring of the inbox. A claim is found until its ring has rotated
/// more often than this.
pub const SEALED: usize = 6;

/// Makes the next rotation of a ring due, as if its period had passed.
pub async fn make_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = '{ring}'"
        ))
        .await
}

/// Makes the end of the present segment of a ring due, as if its time had passed.
pub async fn make_segment_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET segment_opened = segment_opened - retention,
                                  segment_started = segment_opened - retention,
                                  segment_bytes = 0
              WHERE name = '{ring}'"
        ))
        .await
}

/// Creates `open_segments()`, which publishes the step `advancing` of every steady ring at once and
/// returns the number of rings. A segment would be open for longer than a test, and would not end
/// while a filter is missing. The next step is that of the maintenance.
pub const OPEN_SEGMENTS: &str = "
CREATE FUNCTION open_segments() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    rings bigint;
BEGIN
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    UPDATE idem.ring SET phase = 'advancing', segment_opened = idem.tick()
     WHERE phase = 'steady' AND segment < 63 AND name <> 'outbox';
    GET DIAGNOSTICS rings = ROW_COUNT;
    RETURN rings;
END
$$";

/// Tries the next step of a rotation. Returns the executed step.
pub async fn rotate(session: &Session, ring: &str) -> Result<String> {
    session.text(&format!("SELECT idem.rotate('{ring}')")).await
}

/// Waits until a maintenance step waits at its fence.
pub async fn until_at_fence(session: &Session, step: &str) -> Result<()> {
    until("the step waits at its fence", async || {
        let waits =
            format!("SELECT count(*) FROM idem.fence WHERE name = '{step}' AND lockers <> '{{}}'");
        Ok(session.text(&waits).await? == "1")
    })
    .await
}

/// Rotates a ring once, while transactions run.
pub async fn rotate_once(session: &Session, ring: &str) -> Result<()> {
    let before = rotations(session, ring).await?;
    make_due(session, ring).await?;
    // The worker may do some of the steps, so the state counts, and not the step that is returned.
    let has_rotated = format!(
        "SELECT rotations > {before} AND phase = 'steady'
           FROM idem.ring WHERE name = '{ring}'"
    );
    until("the ring has rotated", async || {
        rotate(session, ring).await?;
        Ok(session.text(&has_rotated).await? == "t")
    })
    .await
}

/// Builds the filters of all rings until each slice has one.
pub async fn build_filters(session: &Session) -> Result<()> {
    until("each slice has a filter", async || {
        session
            .run("SELECT idem.build_filters(r) FROM generate_series(0, 2) r")
            .await?;
        let missing = "SELECT count(*) FROM idem.filters WHERE status <> 'complete'";
        Ok(session.text(missing).await? == "0")
    })
    .await
}

/// Returns how often a ring has rotated.
pub async fn rotations(session: &Session, ring: &str) -> Result<i64> {
    let rotations = session
        .text(&format!(
            "SELECT rotations FROM idem.ring WHERE name = '{ring}'"
        ))
        .await?;
    Ok(rotations.parse()?)
}
