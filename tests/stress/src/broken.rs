//! Broken variants of the protocol: of the rotation, of the lease and of the filters. Each of them
//! looks correct until it runs under stress.

use std::time::Duration;

use anyhow::Result;

use super::line::{connect, expect_kill};
use super::run::Arena;

/// Rotates the ring immediately and truncates the slice that left it, without opening and without a
/// fence. The rest of the protocol is unchanged: the backends learn of the rotation, but too late.
pub const ROTATE_AT_ONCE: &str = "
CREATE FUNCTION rotate_at_once() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r idem.ring;
BEGIN
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'standard' FOR UPDATE;
    PERFORM idem.rotate_slices(r);
    UPDATE idem.ring x SET phase = 'steady' WHERE x.name = 'standard';
    EXECUTE format('TRUNCATE %s', idem.slice_table('standard', r.slices[3]));
END
$$";

/// A claim as an application might write it in SQL. It locks `idem.ring`, honours the opening,
/// probes the sealed slices and inserts with ON CONFLICT, but it reads the state of the ring with
/// the snapshot of its transaction.
const CLAIM_BY_OWN_SNAPSHOT: &str = "
CREATE FUNCTION claim_by_own_snapshot(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    r       idem.ring;
    claim   uuid := md5(id || '/' || destination);
    taken   boolean;
BEGIN
    LOCK TABLE idem.ring IN ROW EXCLUSIVE MODE;
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'standard';
    FOR sealed IN 3 .. cardinality(r.slices) LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s s WHERE s.key = $1 AND s.destination = 0)',
                       idem.slice_table('standard', r.slices[sealed]))
            INTO taken USING claim;
        IF taken THEN
            RETURN false;
        END IF;
    END LOOP;
    FOR written IN 1 .. 1 + (r.phase = 'opening')::integer LOOP
        EXECUTE format('INSERT INTO %s (key, claimed_at, destination, id) '
                       'VALUES ($1, now(), 0, $2) ON CONFLICT DO NOTHING RETURNING true',
                       idem.slice_table('standard', r.slices[written]))
            INTO taken USING claim, id;
        IF taken IS NULL THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END
$$";

/// Completes a lease without a check of its token. The pending message is deleted, and the claim is
/// made once.
pub const COMPLETE_UNFENCED: &str = "
CREATE FUNCTION complete_unfenced(id text, destination text, token bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    claim idem_outcome;
BEGIN
    LOCK TABLE idem.pending_0, idem.pending_1 IN ROW EXCLUSIVE MODE;
    DELETE FROM idem.pending_0 w WHERE w.id = complete_unfenced.id;
    DELETE FROM idem.pending_1 w WHERE w.id = complete_unfenced.id;
    -- A claimer may wait for the pending row that this function has deleted, so this function does
    -- not wait for the claimer, as in idem_complete.
    claim := (idem_claim(id, destination, wait => false)).outcome;
    IF claim = 'in_progress' THEN
        RAISE EXCEPTION 'another transaction is claiming the message' USING ERRCODE = '55P03';
    ELSIF claim <> 'claimed' THEN
        RAISE EXCEPTION 'the message is already claimed' USING ERRCODE = '55000';
    END IF;
    RETURN true;
END
$$";

/// Removes the constraints that invalidate the filter of a slice when another command than a claim
/// inserts a row.
pub const KEEP_FILTERS: &str = "
DO $$
DECLARE
    slice record;
BEGIN
    FOR slice IN SELECT conrelid::regclass AS name FROM pg_constraint
                  WHERE conname = 'row_invalidates_the_filter' LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT row_invalidates_the_filter', slice.name);
    END LOOP;
END
$$";

/// Creates the functions of all variants.
pub(super) const SCHEMA: [&str; 3] = [ROTATE_AT_ONCE, CLAIM_BY_OWN_SNAPSHOT, COMPLETE_UNFENCED];

/// The claim function of the second variant.
pub const STALE_CLAIM: &str = "claim_by_own_snapshot";

/// The function of the third variant that completes a lease.
pub const UNFENCED_COMPLETE: &str = "complete_unfenced";

/// Rotates without opening and fence, once in each `period`, until the run ends.
pub(super) async fn rotate(arena: &Arena, period: Duration) -> Result<()> {
    let client = connect(&arena.url).await?;
    client.batch_execute("SET lock_timeout = '1s'").await?;
    let mut rhythm = tokio::time::interval(period);
    while arena.is_open() {
        rhythm.tick().await;
        match client.batch_execute("SELECT rotate_at_once()").await {
            Ok(()) => {}
            // A reader holds a lock on the slice that would be truncated. The rotation is rolled
            // back and retried.
            Err(error) if error.code().is_some_and(|code| code.code() == "55P03") => {}
            Err(error) => expect_kill(error)?,
        }
    }
    Ok(())
}
