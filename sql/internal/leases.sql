-- What the functions of leases have in common: the pending message, the retry policy, and how a
-- message becomes a dead letter.

-- The row type of idem.pending_0 is used for both tables.
CREATE FUNCTION idem.find_pending(
    table_number integer,
    key          uuid,
    destination  integer
) RETURNS idem.pending_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p idem.pending_0;
BEGIN
    IF table_number = 0 THEN
        SELECT * INTO p FROM idem.pending_0 x
         WHERE x.key = find_pending.key AND x.destination = find_pending.destination
           FOR UPDATE;
    ELSE
        SELECT * INTO p FROM idem.pending_1 x
         WHERE x.key = find_pending.key AND x.destination = find_pending.destination
           FOR UPDATE;
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.find_pending(integer, uuid, integer) IS
    'Locks and returns the pending message of an identity; a row of nulls if there is none.';

CREATE FUNCTION idem.write_pending(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF table_number = 0 THEN
        UPDATE idem.pending_0 x
           SET seq = p.seq,
               token = p.token,
               due_at = p.due_at,
               attempt = p.attempt,
               payload_slice = p.payload_slice,
               order_key = p.order_key,
               state = p.state,
               stops_claims = p.stops_claims AND p.state = 'l',
               errors = p.errors
         WHERE x.key = p.key AND x.destination = p.destination;
    ELSE
        UPDATE idem.pending_1 x
           SET seq = p.seq,
               token = p.token,
               due_at = p.due_at,
               attempt = p.attempt,
               payload_slice = p.payload_slice,
               order_key = p.order_key,
               state = p.state,
               stops_claims = p.stops_claims AND p.state = 'l',
               errors = p.errors
         WHERE x.key = p.key AND x.destination = p.destination;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.write_pending(integer, idem.pending_0) IS
    'Writes a pending message except its key, destination, id and time of arrival, which no '
    'function in SQL changes. Only a lease stops claims.';

-- The id and the destination are checked before the token, so that an id of 2,000 bytes is reported
-- as an invalid argument and not as a lost lease.
CREATE FUNCTION idem.held_pending(
    table_number integer,
    id           text,
    destination  text,
    token        bigint
) RETURNS idem.pending_0
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key uuid := idem.key_of(held_pending.id);
    p   idem.pending_0;
BEGIN
    p := idem.find_pending(table_number, key, idem.find_destination(held_pending.destination));
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM idem.check_same_id(p.key, p.id, held_pending.id, held_pending.destination);
    IF p.key IS NULL OR p.token <> held_pending.token OR p.state <> 'l' THEN
        RAISE EXCEPTION 'lease token % is no longer valid for message "%" of destination "%"',
            held_pending.token, held_pending.id, held_pending.destination
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease expired and another process acquired it, or the message was '
                         'completed or released. Stop working on it.';
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_pending(integer, text, text, bigint) IS
    'Locks and returns the pending message that the token leases. Errors: 22004, 22023, 23000, '
    '55000 (stale token).';

-- The defaults of retry policies are defined here only, except max_attempts, which is defined in
-- extension/core.
CREATE FUNCTION idem.default_policy(destination integer) RETURNS idem.retry_policy
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN ROW(destination, idem.default_max_attempts(), 2, 0.2, '1 second', '10 minutes', '{}')
       ::idem.retry_policy;
COMMENT ON FUNCTION idem.default_policy(integer) IS
    'Returns the retry policy of a destination without a policy of its own.';

CREATE FUNCTION idem.policy_of(destination integer) RETURNS idem.retry_policy
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    policy idem.retry_policy;
BEGIN
    SELECT * INTO policy FROM idem.retry_policy p WHERE p.destination = policy_of.destination;
    IF NOT FOUND THEN
        policy := idem.default_policy(policy_of.destination);
    END IF;
    RETURN policy;
END
$$;
COMMENT ON FUNCTION idem.policy_of(integer) IS
    'Returns the retry policy of a destination: the one that idem_configure_retries set, or the '
    'defaults.';

-- Calculates with logarithms, because factor ^ attempt can overflow.
CREATE FUNCTION idem.pause_after(policy idem.retry_policy, attempt integer) RETURNS interval
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base_s  float8 := extract(epoch FROM policy.base);
    cap_s   float8 := extract(epoch FROM policy.cap);
    pause_s float8;
BEGIN
    IF base_s = 0 THEN
        RETURN '0';
    END IF;
    pause_s := CASE WHEN ln(base_s) + greatest(attempt - 1, 0) * ln(policy.factor) >= ln(cap_s)
                    THEN cap_s
                    ELSE base_s * exp(greatest(attempt - 1, 0) * ln(policy.factor)) END;
    RETURN pause_s * (1 - policy.jitter * random()) * interval '1 second';
END
$$;
COMMENT ON FUNCTION idem.pause_after(idem.retry_policy, integer) IS
    'Returns the back-off after a failed attempt: base * factor ^ (attempt - 1), at most cap. The '
    'share jitter of it is random.';

-- The dead letter has its own copy of the payload, because dead letters may be kept for months. The
-- pending row stays, so that a redelivery of the message is recognized.
CREATE FUNCTION idem.make_dead_letter(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    b idem.payload_0;
BEGIN
    EXECUTE format('SELECT x.* FROM %s x WHERE x.seq = $1', idem.payload_table(p.payload_slice))
       INTO STRICT b USING p.seq;
    PERFORM idem.write_dead_letter(p, b.payload, b.content_type, b.type, b.headers, b.traceparent);
    p.due_at := 'infinity';
    p.state := 'd';
    p.payload_slice := NULL;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem.make_dead_letter(integer, idem.pending_0) IS
    'Makes a received message a dead letter.';

-- idem_next calls this function for messages that are due and have no attempt left, have a final
-- error, or are too large to be returned. A message can be received after its final error: the
-- error was reported by a consumer that got the message from its broker. The function skips rows
-- that another transaction has locked.
CREATE FUNCTION idem.make_dead_letters(
    destination  integer,
    keys         uuid[],
    max_attempts integer
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    table_number integer := idem.enter_pending();
    now_wall     timestamptz := clock_timestamp();
    p            idem.pending_0;
    bytes        bigint;
BEGIN
    FOR p IN EXECUTE format($sql$
        SELECT x.* FROM %s x
         WHERE x.key = ANY ($1) AND x.destination = $2 AND x.payload_slice IS NOT NULL
           AND x.due_at <= $3
         ORDER BY x.key FOR UPDATE SKIP LOCKED
        $sql$, idem.pending_table(table_number)) USING keys, destination, now_wall
    LOOP
        IF p.state = 'l' THEN
            p.errors := idem.note_expired_lease(p.errors, p.attempt);
        END IF;
        IF p.attempt < max_attempts AND NOT p.errors @> '[{"final": true}]' THEN
            EXECUTE format('SELECT octet_length(x.payload) FROM %s x WHERE x.seq = $1',
                           idem.payload_table(p.payload_slice))
               INTO STRICT bytes USING p.seq;
            CONTINUE WHEN bytes <= idem.largest_payload();
            p.errors := idem.note_failure(p.errors, p.attempt, idem.too_large(bytes), true);
        END IF;
        PERFORM idem.make_dead_letter(table_number, p);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.make_dead_letters(integer, uuid[], integer) IS
    'Makes dead letters of due messages that have no attempt left, have a final error, or are too '
    'large to be returned.';

-- The message may already have a dead letter. A claim deletes the pending row and keeps the dead
-- letter, and after the claim is forgotten the message can be received and fail again. The newer
-- dead letter replaces the older one.
CREATE FUNCTION idem.write_dead_letter(
    p            idem.pending_0,
    payload      bytea,
    content_type text,
    type         text,
    headers      jsonb,
    traceparent  text
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO idem.dead_letter AS d
           (seq, received_at, key, destination, attempt, id, order_key,
            type, payload, content_type, headers, traceparent, errors)
    VALUES ((p).seq, (p).received_at, (p).key, (p).destination, (p).attempt, (p).id, (p).order_key,
            write_dead_letter.type, write_dead_letter.payload, write_dead_letter.content_type,
            write_dead_letter.headers, write_dead_letter.traceparent, (p).errors)
    ON CONFLICT (key, destination) DO UPDATE
       SET seq = excluded.seq,
           died_at = excluded.died_at,
           received_at = excluded.received_at,
           attempt = excluded.attempt,
           id = excluded.id,
           order_key = excluded.order_key,
           type = excluded.type,
           payload = excluded.payload,
           content_type = excluded.content_type,
           headers = excluded.headers,
           traceparent = excluded.traceparent,
           errors = excluded.errors;
END;
COMMENT ON FUNCTION idem.write_dead_letter(idem.pending_0, bytea, text, text, jsonb, text) IS
    'Writes the dead letter of a pending message.';
