-- Work that somebody holds: extended, given back, buried. idem_acquire and idem_complete are written in Rust, beside the claim;
-- idem_next is in 63_next.sql.

CREATE FUNCTION idem.check_work() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'work is done on the primary, this is a standby' USING ERRCODE = 'read_only_sql_transaction';
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'leases are taken and given back in READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'They must be read as they are now, not as they were when the transaction began.';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'leases are written, this transaction is read-only' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_work() IS 'Errors: 25000 (not READ COMMITTED), 25006 (a standby, or read-only).';

-- Two statements: the lock is had before the snapshot that reads which table counts.
CREATE FUNCTION idem.enter_work() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE idem.work_0, idem.work_1 IN ROW EXCLUSIVE MODE;
    RETURN (SELECT t.current FROM idem.work_turn t WHERE t.id = 1);
END
$$;
COMMENT ON FUNCTION idem.enter_work() IS 'The table of work that counts, until the end of the transaction.';

CREATE VIEW idem.body_row AS
    SELECT 0::int2 AS slice, b.* FROM idem.body_0 b
    UNION ALL
    SELECT 1::int2, b.* FROM idem.body_1 b
    UNION ALL
    SELECT 2::int2, b.* FROM idem.body_2 b
    UNION ALL
    SELECT 3::int2, b.* FROM idem.body_3 b;
COMMENT ON VIEW idem.body_row IS 'The slices of the bodies as one relation.';

-- A second row type would have to follow every change of the first.
CREATE FUNCTION idem.find_work(slice integer, key uuid, destination integer) RETURNS idem.work_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    w idem.work_0;
BEGIN
    IF slice = 0 THEN
        SELECT * INTO w FROM idem.work_0 x WHERE x.key = find_work.key AND x.destination = find_work.destination FOR UPDATE;
    ELSE
        SELECT * INTO w FROM idem.work_1 x WHERE x.key = find_work.key AND x.destination = find_work.destination FOR UPDATE;
    END IF;
    RETURN w;
END
$$;
COMMENT ON FUNCTION idem.find_work(integer, uuid, integer) IS 'The work of an identity, locked; a row of nulls when there is none.';

CREATE FUNCTION idem.write_work(slice integer, w idem.work_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF slice = 0 THEN
        UPDATE idem.work_0 x
           SET seq = w.seq, token = w.token, due_at = w.due_at, attempt = w.attempt, body = w.body, leased = w.leased, errors = w.errors
         WHERE x.key = w.key AND x.destination = w.destination;
    ELSE
        UPDATE idem.work_1 x
           SET seq = w.seq, token = w.token, due_at = w.due_at, attempt = w.attempt, body = w.body, leased = w.leased, errors = w.errors
         WHERE x.key = w.key AND x.destination = w.destination;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.write_work(integer, idem.work_0) IS 'Writes what can change of an identity''s work.';

-- The name is checked before the token is: an id of 2,000 bytes is the caller's mistake and no lost lease.
CREATE FUNCTION idem.held_work(slice integer, id text, destination text, token bigint) RETURNS idem.work_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key uuid := idem.key_of(held_work.id);
    w   idem.work_0;
BEGIN
    w := idem.find_work(slice, key, idem.find_destination(held_work.destination));
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF w.id <> held_work.id THEN
        RAISE EXCEPTION 'the key of this message id belongs to another id of destination "%"', held_work.destination
            USING ERRCODE = 'integrity_constraint_violation',
                  HINT = format('The other id is %s. Send one of the two messages with another id.', w.id);
    ELSIF w.key IS NULL OR w.token <> held_work.token OR NOT w.leased THEN
        RAISE EXCEPTION 'token % does not hold message "%" of destination "%"', held_work.token, held_work.id, held_work.destination
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease ran out and somebody else took it, or it was completed or given back. Stop working on it: whatever it needs, the holder does.';
    END IF;
    RETURN w;
END
$$;
COMMENT ON FUNCTION idem.held_work(integer, text, text, bigint) IS 'The work that this token holds, locked. Errors: 22004, 22023, 23000, 55000 (stale token).';

-- Times and texts of errors: the last is what the next attempt is told.
CREATE FUNCTION idem.noted(errors jsonb, attempt integer, error text, final boolean DEFAULT false) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN pg_catalog.jsonb_array_length(errors) OPERATOR(pg_catalog.>=) 100 THEN errors OPERATOR(pg_catalog.-) 0 ELSE errors END
    OPERATOR(pg_catalog.||) (pg_catalog.jsonb_build_object('at', pg_catalog.clock_timestamp(), 'attempt', attempt, 'error', pg_catalog.left(error, 2000))
    OPERATOR(pg_catalog.||) CASE WHEN final THEN '{"final": true}' ELSE '{}' END::jsonb);
COMMENT ON FUNCTION idem.noted(jsonb, integer, text, boolean) IS 'The errors with one more, of at most 2000 characters; the newest 100 are kept.';

CREATE FUNCTION idem.policy_of(destination integer) RETURNS idem.retry_policy
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy idem.retry_policy;
BEGIN
    SELECT * INTO policy FROM idem.retry_policy p WHERE p.destination = policy_of.destination;
    IF NOT FOUND THEN
        policy := (policy_of.destination, 10, 2, 0.2, '1 second', '10 minutes', '{}');
    END IF;
    RETURN policy;
END
$$;
COMMENT ON FUNCTION idem.policy_of(integer) IS 'How a destination retries: what idem_configure_retries said, or the defaults.';

-- In logarithms: factor ^ attempt is not a number for long.
CREATE FUNCTION idem.rest_after(policy idem.retry_policy, attempt integer) RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base_s float8 := extract(epoch FROM policy.base);
    cap_s  float8 := extract(epoch FROM policy.cap);
    rest_s float8;
BEGIN
    IF base_s = 0 THEN
        RETURN '0';
    END IF;
    rest_s := CASE WHEN ln(base_s) + greatest(attempt - 1, 0) * ln(policy.factor) >= ln(cap_s) THEN cap_s
                   ELSE base_s * exp(greatest(attempt - 1, 0) * ln(policy.factor)) END;
    RETURN rest_s * (1 - policy.jitter * random()) * interval '1 second';
END
$$;
COMMENT ON FUNCTION idem.rest_after(idem.retry_policy, integer) IS 'The pause after a failed attempt: base * factor ^ (attempt - 1), at most cap; the share jitter of it is random.';

-- The letter takes its own copy: bodies are not kept for what may lie for months. The work stays, so that the identity is known.
CREATE FUNCTION idem.die(slice integer, w idem.work_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    b idem.body_row;
BEGIN
    SELECT x.* INTO b FROM idem.body_row x WHERE x.slice = w.body AND x.seq = w.seq;
    PERFORM idem.write_letter(w, coalesce(b.payload, ''), coalesce(b.content_type, 'application/octet-stream'), b.type, b.headers, b.traceparent);
    w.due_at := 'infinity';
    w.leased := false;
    w.body := NULL;
    PERFORM idem.write_work(slice, w);
END
$$;
COMMENT ON FUNCTION idem.die(integer, idem.work_0) IS 'Moves a received message to the dead letters.';

-- An identity that died before, was forgotten and received anew dies once more: its letter is the newer one.
CREATE FUNCTION idem.write_letter(w idem.work_0, payload bytea, content_type text, type text, headers jsonb, traceparent text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO idem.dead_letter AS d (seq, received_at, key, destination, attempt, id, order_key, type, payload, content_type, headers, traceparent, errors)
    VALUES ((w).seq, (w).received_at, (w).key, (w).destination, (w).attempt, (w).id, (w).order_key, write_letter.type, write_letter.payload,
            write_letter.content_type, write_letter.headers, write_letter.traceparent, (w).errors)
    ON CONFLICT (key, destination) DO UPDATE
       SET seq = excluded.seq, died_at = excluded.died_at, received_at = excluded.received_at, attempt = excluded.attempt, id = excluded.id,
           order_key = excluded.order_key, type = excluded.type, payload = excluded.payload, content_type = excluded.content_type,
           headers = excluded.headers, traceparent = excluded.traceparent, errors = excluded.errors;
END;
COMMENT ON FUNCTION idem.write_letter(idem.work_0, bytea, text, text, jsonb, text) IS 'A dead letter of this work.';

CREATE FUNCTION idem_extend(id text, destination text, token bigint, lease interval DEFAULT '30 seconds') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice integer;
    w     idem.work_0;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.check_work();
    slice := idem.enter_work();
    w := idem.held_work(slice, idem_extend.id, idem_extend.destination, idem_extend.token);
    w.due_at := clock_timestamp() + lease;
    PERFORM idem.write_work(slice, w);
END
$$;
COMMENT ON FUNCTION idem_extend(text, text, bigint, interval) IS 'The lease that this token holds lasts so long from now on. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';

CREATE FUNCTION idem_extend(id uuid, destination text, token bigint, lease interval DEFAULT '30 seconds') RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_extend(id::text, destination, token, lease);
COMMENT ON FUNCTION idem_extend(uuid, text, bigint, interval) IS 'The lease that this token holds lasts so long from now on. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';

CREATE FUNCTION idem_release(id text, destination text, token bigint, error text DEFAULT NULL, final boolean DEFAULT false) RETURNS interval
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice  integer;
    w      idem.work_0;
    policy idem.retry_policy;
    rest   interval;
BEGIN
    IF idem_release.final IS NULL THEN
        RAISE EXCEPTION 'final must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF idem_release.final AND idem_release.error IS NULL THEN
        RAISE EXCEPTION 'final without an error'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Say why there is to be no other attempt.';
    END IF;
    PERFORM idem.check_work();
    slice := idem.enter_work();
    w := idem.held_work(slice, idem_release.id, idem_release.destination, idem_release.token);
    w.leased := false;
    IF idem_release.error IS NULL THEN
        -- Nothing happened: the attempt does not count.
        w.attempt := w.attempt - 1;
        rest := '0';
    ELSE
        policy := idem.policy_of(w.destination);
        final := idem_release.final OR idem_release.error LIKE ANY (policy.final_errors);
        w.errors := idem.noted(w.errors, w.attempt, idem_release.error, final);
        rest := CASE WHEN NOT final AND w.attempt < policy.max_attempts THEN idem.rest_after(policy, w.attempt) END;
    END IF;
    IF rest IS NULL AND w.body IS NOT NULL THEN
        PERFORM idem.die(slice, w);
    ELSE
        -- Without a body it is the broker's message: the next acquire is told that it is exhausted, and buries it.
        w.due_at := clock_timestamp() + coalesce(rest, '0');
        PERFORM idem.write_work(slice, w);
    END IF;
    PERFORM idem.tell_receivers();
    RETURN rest;
END
$$;
COMMENT ON FUNCTION idem_release(text, text, bigint, text, boolean) IS 'Gives a lease back: answers how long the message rests before its next attempt, or null when there is none. Without an error: unharmed, the attempt does not count. With an error: attempts are counted, and a received message that has used them up, or whose error is final, goes to the dead letters. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';

CREATE FUNCTION idem_release(id uuid, destination text, token bigint, error text DEFAULT NULL, final boolean DEFAULT false) RETURNS interval
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_release(id::text, destination, token, error, final);
COMMENT ON FUNCTION idem_release(uuid, text, bigint, text, boolean) IS 'Gives a lease back: answers how long the message rests before its next attempt, or null when there is none. Without an error: unharmed, the attempt does not count. With an error: attempts are counted, and a received message that has used them up, or whose error is final, goes to the dead letters. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';
