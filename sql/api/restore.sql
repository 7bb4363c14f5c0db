-- The end of a restore, and the identity of the installation.

CREATE FUNCTION idem_finish_restore() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
    loading regclass;
    missing text;
BEGIN
    PERFORM idem.check_transaction('idem_finish_restore()');
    IF NOT EXISTS (SELECT FROM idem.loaded_table) AND NOT idem.is_restoring() THEN
        RETURN;
    END IF;
    BEGIN
        -- A COPY that is still running holds a lock that conflicts with these locks.
        FOR loading IN
            SELECT c.oid FROM pg_class c
             WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r'
             -- A COPY locks its table and then this one.
             ORDER BY c.relname = 'loaded_table', c.oid
        LOOP
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', loading);
        END LOOP;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            RAISE EXCEPTION 'another session writes to %', loading
                USING ERRCODE = 'lock_not_available',
                      HINT = 'Wait until pg_restore has ended, and call the function again.';
    END;
    IF idem.is_restoring() THEN
        missing := idem.missing_of_restore();
        IF missing IS NOT NULL THEN
            RAISE EXCEPTION 'the restore is not complete'
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('This is missing: %s.', missing),
                      HINT = 'Wait until pg_restore has ended. If it failed, restore the dump into '
                             'a new database.';
        END IF;
        -- The note about pending messages may have been set before they were loaded.
        PERFORM idem.note_pending(0);
    END IF;
    DELETE FROM idem.loaded_table;
END
$$;
COMMENT ON FUNCTION idem_finish_restore() IS
    'Ends the restore of a dump: maintenance continues, and the functions of idem work again. Call '
    'it when pg_restore has ended without an error. A restore with --single-transaction ends by '
    'itself. Does nothing if no restore is in progress. Errors: 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction), 55000 (the restore is not complete), 55P03 (another '
    'session still writes to a table of idem).';

CREATE FUNCTION idem_new_installation() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    open_call text;
    new_id    uuid := gen_random_uuid();
BEGIN
    PERFORM idem.check_transaction('idem_new_installation()');
    PERFORM idem.check_usable();
    PERFORM idem.lock_out_claims();
    open_call := idem.open_call();
    IF open_call IS NOT NULL THEN
        RAISE EXCEPTION 'the result of an external call is not known'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('It is %s. Its next attempt would have another idempotency key.',
                                  open_call),
                  HINT = 'Find out the result of the call, and record it with idem_finish_call or '
                         'idem_fail_call.';
    END IF;
    UPDATE idem.installation SET installation = new_id;
    UPDATE idem.clock SET installation = new_id;
    UPDATE idem.pending_rotation SET installation = new_id;
    UPDATE idem.payload_rotation SET installation = new_id;
    UPDATE idem.ring SET installation = new_id;
END
$$;
COMMENT ON FUNCTION idem_new_installation() IS
    'Makes this database another installation, for example a clone of a production database that '
    'becomes a test system. Message ids of effects and idempotency keys of external calls that are '
    'derived from now on differ from those of the original. Recorded effects keep their ids. '
    'Errors: 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the '
    'result of an external call is not known), 55P03 (claims ran for more than 2 seconds), 58000 '
    '(the database is being restored).';
