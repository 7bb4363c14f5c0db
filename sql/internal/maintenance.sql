-- Maintenance: a pass is a list of steps. Each step is a transaction of its own. A step that fails
-- does not stop the other steps. Its error is stored until the step succeeds, and is logged when it
-- is new.

CREATE FUNCTION idem.maintenance_steps() RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN ARRAY['clock', 'ring short', 'ring standard', 'ring long', 'ring outbox',
             'pending messages', 'payloads', 'progress', 'filters'];
COMMENT ON FUNCTION idem.maintenance_steps() IS
    'Returns the steps of a maintenance pass in their order.';

-- Rings that no destination uses or has left get no filters, because filters need memory.
CREATE FUNCTION idem.build_all_filters() RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_or(idem.build_filters(r.id)), false)
      FROM idem.ring r
     WHERE r.name <> 'outbox'
       AND EXISTS (SELECT FROM idem.destination d
                    WHERE d.ring = r.id
                       OR CASE r.name WHEN 'short'    THEN d.left_short
                                      WHEN 'standard' THEN d.left_standard
                                      ELSE d.left_long END IS NOT NULL);
$$;
COMMENT ON FUNCTION idem.build_all_filters() IS
    'Maintenance step: does one step for the filters of each ring that is used. Returns true if a '
    'step was done.';

-- Each step has its own IF, so that a missing function makes only its own step fail. With one
-- expression for all steps, every step would fail.
CREATE FUNCTION idem.run_step(step text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF idem.is_restoring() THEN
        RETURN false;
    ELSIF starts_with(step, 'ring ') THEN
        RETURN idem.rotate(substr(step, 6)) IN ('advancing', 'advanced', 'opened', 'rotated',
                                                'emptied');
    ELSIF step = 'clock' THEN
        PERFORM idem.keep_clock();
        PERFORM idem.forget_aborted_loads();
        RETURN false;
    ELSIF step = 'pending messages' THEN
        RETURN idem.rotate_pending();
    ELSIF step = 'payloads' THEN
        RETURN idem.rotate_payloads();
    ELSIF step = 'progress' THEN
        RETURN idem.rotate_progress();
    ELSIF step = 'filters' THEN
        RETURN idem.build_all_filters();
    END IF;
    RAISE EXCEPTION 'there is no maintenance step "%"', step
        USING ERRCODE = 'invalid_parameter_value', HINT = 'See idem.maintenance_steps().';
END
$$;
COMMENT ON FUNCTION idem.run_step(text) IS
    'Runs a maintenance step. Returns true if it changed something and may have more to do. Does '
    'nothing while the database is being restored.';

CREATE FUNCTION idem.note_error(step text, code text, problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT 1 FROM idem.maintenance_error e
                WHERE e.step = note_error.step AND e.sqlstate = code AND e.message = problem) THEN
        PERFORM idem.warn_client(step, problem);
        RETURN;
    END IF;
    INSERT INTO idem.maintenance_error (step, sqlstate, message)
        VALUES (note_error.step, code, problem)
        ON CONFLICT (step) DO UPDATE SET sqlstate = excluded.sqlstate, message = excluded.message;
    RAISE WARNING 'maintenance step "%" fails: %', step, problem
        USING ERRCODE = code,
              HINT = 'The other steps continue, and this step is retried in every pass. It is '
                     'logged again when its error changes: see idem_health().';
END
$$;
COMMENT ON FUNCTION idem.note_error(text, text, text) IS
    'Stores the error of a maintenance step. The error is logged when it is new; a caller of '
    'idem_maintain gets it as a warning each time.';

CREATE FUNCTION idem.warn_client(step text, problem text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET log_min_messages = 'error'
AS $$
BEGIN
    RAISE WARNING 'maintenance step "%" fails: %', step, problem;
END
$$;
COMMENT ON FUNCTION idem.warn_client(text, text) IS
    'Sends a warning to the client only, because the log already has this error.';

-- A step can take long, for example when it builds a filter. If the setting of a database ended it,
-- the next pass would begin again. PostgreSQL has the setting since version 17.
CREATE FUNCTION idem.lift_transaction_timeout() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_timeout', true) <> '0' THEN
        PERFORM set_config('transaction_timeout', '0', true);
    END IF;
END
$$;
COMMENT ON FUNCTION idem.lift_transaction_timeout() IS
    'Lifts transaction_timeout for the current transaction.';

CREATE FUNCTION idem.maintain_step(step text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    done    boolean;
    code    text;
    problem text;
BEGIN
    PERFORM idem.check_transaction('idem_maintain()');
    PERFORM idem.lift_transaction_timeout();
    BEGIN
        done := idem.run_step(step);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, problem = MESSAGE_TEXT;
    END;
    IF code IS NULL THEN
        DELETE FROM idem.maintenance_error e WHERE e.step = maintain_step.step;
        RETURN done;
    END IF;
    PERFORM idem.note_error(step, code, problem);
    RETURN false;
END
$$;
COMMENT ON FUNCTION idem.maintain_step(text) IS
    'Runs one maintenance step. Returns true if the step may have more to do: commit, and call '
    'the function again. An error of the step is reported as a warning. Error: 25000 (not READ '
    'COMMITTED).';
