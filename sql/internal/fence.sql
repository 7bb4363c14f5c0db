-- The fences of maintenance. A fence is the list of the transactions that may still act on the
-- state before a step. The next step waits until they have ended. The list is read after the step
-- has committed, and not again while it is waited for, because a new list at each check might never
-- be empty. It is stored in a table, so a maintainer that waits can end, and the next one
-- continues.
--
-- The fence of a ring lists the transactions with the lock of ring::enter: claims, also duplicates,
-- and all other functions that write messages, leases, effects, external calls or dead letters.
-- Prepared transactions are listed too. A transaction that enters later sees the new state. All
-- rings share the lock on idem.ring, so an open transaction delays the next fence of every ring. A
-- fence that passes late only delays the rotation: claims are stored twice for longer, or the slice
-- that left the ring is kept for longer.
--
-- The row names the server run: the database, and a random number that shared memory gets at each
-- start and after each crash. Virtual transaction ids have no meaning in another database or after
-- a crash. For another step or another run a new list is read, which is later and therefore safe.

CREATE FUNCTION idem.fence(fence_name text, step text, relation regclass) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    run    constant text := idem.server_run();
    listed text[];
    remain text[];
BEGIN
    SELECT f.lockers INTO listed
      FROM idem.fence f
     WHERE f.name = fence_name AND f.step = fence.step AND f.server_run = run;
    remain := idem.still_running(coalesce(listed, idem.lockers(relation)), 0);
    IF listed IS NULL OR (remain = '{}' AND listed <> '{}') THEN
        INSERT INTO idem.fence (name, step, server_run, lockers)
            VALUES (fence_name, fence.step, run, remain)
            ON CONFLICT (name) DO UPDATE
               SET step = excluded.step,
                   server_run = excluded.server_run,
                   lockers = excluded.lockers;
    END IF;
    RETURN remain = '{}';
END
$$;
COMMENT ON FUNCTION idem.fence(text, text, regclass) IS
    'Returns true when all transactions have ended that held a writer''s lock on the relation at '
    'the first check of this step. fence_name: the maintenance step that waits, or the filter. '
    'step: what was done before; each step has another value. Error: 25001 (for idem.ring, in '
    'the transaction that publishes the step).';

CREATE FUNCTION idem.waits_at_fence() RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM idem.fence f
                    WHERE f.lockers <> '{}' AND f.server_run = idem.server_run());
$$;
COMMENT ON FUNCTION idem.waits_at_fence() IS
    'Returns whether a step or a filter has not passed its fence.';

CREATE FUNCTION idem.wait_at_fence(step text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    listed text[];
BEGIN
    PERFORM idem.lift_transaction_timeout();
    SELECT f.lockers INTO listed
      FROM idem.fence f
     WHERE f.name = wait_at_fence.step AND f.lockers <> '{}'
       AND f.server_run = idem.server_run();
    RETURN FOUND
       AND idem.still_running(listed, (extract(epoch FROM current_setting('idem.fence_wait')
                                                          ::interval) * 1000)::integer) = '{}';
END
$$;
COMMENT ON FUNCTION idem.wait_at_fence(text) IS
    'Waits for at most idem.fence_wait until a maintenance step can pass its fence. Returns false '
    'if it cannot, or if the step waits at no fence.';
