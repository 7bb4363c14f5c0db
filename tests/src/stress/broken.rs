//! Two ways to get the rotation wrong, and one to get a lease wrong, each of which looks right
//! until it is put under stress.

use std::time::Duration;

use anyhow::Result;

use super::line::{connect, expect_kill};
use super::run::Arena;

/// The ring turns at once and what fell off is truncated: no opening, no fence. The rest of the
/// protocol is untouched, so the backends learn of the turn as they should, just too late.
pub(crate) const TURN_AT_ONCE: &str = "
CREATE FUNCTION turn_at_once() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r idem.ring;
BEGIN
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'standard' FOR UPDATE;
    PERFORM idem.turn(r);
    UPDATE idem.ring x SET emptying = false WHERE x.name = 'standard';
    EXECUTE format('TRUNCATE %s', idem.slice_table('standard', (r.current + 2) % 4));
END
$$";

/// The claim as one would write it in SQL: it locks `idem.ring`, honours the opening, probes the
/// sealed slices and inserts with ON CONFLICT, but reads the state of the ring by the snapshot of
/// its transaction.
const CLAIM_BY_OWN_SNAPSHOT: &str = "
CREATE FUNCTION claim_by_own_snapshot(id text, destination text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    r       idem.ring;
    claim   uuid := md5(id || '/' || destination);
    taken   boolean;
BEGIN
    LOCK TABLE idem.ring IN ROW EXCLUSIVE MODE;
    SELECT * INTO r FROM idem.ring x WHERE x.name = 'standard';
    FOR sealed IN 2 .. 3 LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s s WHERE s.key = $1 AND s.destination = 0)',
                       idem.slice_table('standard', (r.current + sealed) % 4)) INTO taken USING claim;
        IF taken THEN
            RETURN false;
        END IF;
    END LOOP;
    FOR written IN 0 .. r.opening::integer LOOP
        EXECUTE format('INSERT INTO %s (key, claimed_at, destination, id) VALUES ($1, now(), 0, $2) ON CONFLICT DO NOTHING RETURNING true',
                       idem.slice_table('standard', (r.current + written) % 4)) INTO taken USING claim, id;
        IF taken IS NULL THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END
$$";

/// Whoever says that he is done is believed: the work goes, and the claim is made once, but the
/// token is not looked at.
pub(crate) const COMPLETE_UNFENCED: &str = "
CREATE FUNCTION complete_unfenced(id text, destination text, token bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    claim idem_outcome;
BEGIN
    LOCK TABLE idem.pending_0, idem.pending_1 IN ROW EXCLUSIVE MODE;
    DELETE FROM idem.pending_0 w WHERE w.id = complete_unfenced.id;
    DELETE FROM idem.pending_1 w WHERE w.id = complete_unfenced.id;
    -- As idem_complete: a claimer may wait for the pending row, so this does not wait for the claimer.
    claim := (idem_claim(id, destination, wait => false)).outcome;
    IF claim = 'in_progress' THEN
        RAISE EXCEPTION 'another transaction is claiming' USING ERRCODE = '55P03';
    ELSIF claim <> 'claimed' THEN
        RAISE EXCEPTION 'done by another' USING ERRCODE = '55000';
    END IF;
    RETURN true;
END
$$";

/// Creates the functions of all variants.
pub(super) const SCHEMA: [&str; 3] = [TURN_AT_ONCE, CLAIM_BY_OWN_SNAPSHOT, COMPLETE_UNFENCED];

/// The name of the claim function of the second variant.
pub const STALE_CLAIM: &str = "claim_by_own_snapshot";

/// The name of the function that completes in the third variant.
pub const UNFENCED_COMPLETE: &str = "complete_unfenced";

/// Turns without opening and fence until the arena closes, in the rhythm that the retention asks
/// for.
pub(super) async fn turn(arena: &Arena, period: Duration) -> Result<()> {
    let client = connect(&arena.url).await?;
    client.batch_execute("SET lock_timeout = '1s'").await?;
    let mut rhythm = tokio::time::interval(period);
    while arena.is_open() {
        rhythm.tick().await;
        match client.batch_execute("SELECT turn_at_once()").await {
            Ok(()) => {}
            // Somebody reads what fell off: the turn is rolled back and comes later.
            Err(error) if error.code().is_some_and(|code| code.code() == "55P03") => {}
            Err(error) => expect_kill(error)?,
        }
    }
    Ok(())
}
