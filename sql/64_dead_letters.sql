-- Failure: how often a destination tries, what has died, and what becomes of it.

CREATE FUNCTION idem.check_error_like(pattern text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern IS NULL THEN
        RAISE EXCEPTION '% must not be null', what USING ERRCODE = 'null_value_not_allowed';
    -- Works with either value of the caller's standard_conforming_strings.
    ELSIF pattern ~ E'^([^\\\\]|\\\\.)*\\\\$' THEN
        RAISE EXCEPTION '% ends with the escape character', what
            USING ERRCODE = 'invalid_parameter_value', HINT = E'Write \\\\ for a backslash.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_error_like(text, text) IS 'Errors: 22004, 22023.';

CREATE FUNCTION idem_configure_retries(
    destination  text,
    max_attempts integer  DEFAULT NULL,
    base         interval DEFAULT NULL,
    factor       float8   DEFAULT NULL,
    cap          interval DEFAULT NULL,
    jitter       float8   DEFAULT NULL,
    final_errors text[]   DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p       idem.retry_policy := idem.default_policy(0);
    pattern text;
BEGIN
    p.max_attempts := coalesce(idem_configure_retries.max_attempts, p.max_attempts);
    p.base := coalesce(idem_configure_retries.base, p.base);
    p.factor := coalesce(idem_configure_retries.factor, p.factor);
    p.cap := coalesce(idem_configure_retries.cap, p.cap);
    p.jitter := coalesce(idem_configure_retries.jitter, p.jitter);
    p.final_errors := coalesce(idem_configure_retries.final_errors, p.final_errors);
    IF p.max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts is %', p.max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF p.base NOT BETWEEN '0' AND '1 day' THEN
        RAISE EXCEPTION 'base is %', p.base
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 0 and 1 day.';
    ELSIF p.cap NOT BETWEEN p.base AND interval '30 days' OR p.cap <= '0' THEN
        RAISE EXCEPTION 'cap is %', p.cap
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be positive, not below base, and at most 30 days.';
    ELSIF NOT p.factor BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'factor is %', p.factor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF NOT p.jitter BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'jitter is %', p.jitter
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It is the share of a pause that is random: between 0 and 1.';
    END IF;
    FOREACH pattern IN ARRAY p.final_errors LOOP
        PERFORM idem.check_error_like(pattern, 'a pattern of final_errors');
    END LOOP;
    p.destination := idem.intern_destination(idem_configure_retries.destination);
    INSERT INTO idem.retry_policy (destination, max_attempts, base, factor, cap, jitter, final_errors)
    VALUES (p.destination, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.final_errors)
    ON CONFLICT ON CONSTRAINT retry_policy_pkey DO UPDATE
       SET max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor, cap = excluded.cap, jitter = excluded.jitter,
           final_errors = excluded.final_errors;
END
$$;
COMMENT ON FUNCTION idem_configure_retries(text, integer, interval, float8, interval, float8, text[]) IS 'How a destination retries: at most max_attempts (10); the pause before the next attempt is base (1 second) * factor (2) ^ (attempt - 1), at most cap (10 minutes), of which the share jitter (0.2) is random; an error that matches a pattern (LIKE) of final_errors is not tried again. An argument that is null or left out has the default in parentheses. Errors: 22004, 22023, 25006.';

CREATE FUNCTION idem.check_letter_room(destination text, payload bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d    integer := idem.find_destination(check_letter_room.destination);
    most integer := current_setting('idem.max_dead_letters')::integer;
    n    bigint;
BEGIN
    IF octet_length(payload) > 64 * 1024 * 1024 THEN
        RAISE EXCEPTION 'payload has % bytes', octet_length(payload)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'A dead letter has a payload of at most 64 MiB: keep the message elsewhere.';
    END IF;
    SELECT count(*) INTO n FROM (SELECT FROM idem.dead_letter l WHERE l.destination = d LIMIT most) l;
    IF n >= most THEN
        RAISE EXCEPTION 'destination "%" has % dead letters', check_letter_room.destination, n
            USING ERRCODE = 'configuration_limit_exceeded',
                  HINT = 'Requeue or discard dead letters of this destination, or raise idem.max_dead_letters.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_letter_room(text, bytea) IS 'Whether a message of a broker can become a dead letter. Errors: 53400 (idem.max_dead_letters), 54000 (the payload is too large).';

CREATE FUNCTION idem_bury(
    id           text,
    destination  text,
    token        bigint,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    slice integer;
    p     idem.pending_0;
BEGIN
    IF payload IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'payload and error must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(idem_bury.key) NOT BETWEEN 1 AND 1024 OR octet_length(type) NOT BETWEEN 1 AND 255
          OR octet_length(content_type) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'key, type or content_type is empty or too long'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A key has 1 to 1024 bytes, type and content_type 1 to 255.';
    END IF;
    PERFORM idem.check_lease_transaction();
    slice := idem.enter_pending();
    p := idem.held_pending(slice, idem_bury.id, idem_bury.destination, idem_bury.token);
    PERFORM idem.check_letter_room(idem_bury.destination, payload);
    -- The error that idem_acquire returned for an exhausted message is among the errors already.
    IF NOT idem.is_last_failure(p.errors, p.attempt, idem_bury.error) THEN
        p.errors := idem.note_failure(p.errors, p.attempt, idem_bury.error, false);
    END IF;
    p.order_key := coalesce(idem_bury.key, p.order_key);
    PERFORM idem.write_letter(p, idem_bury.payload, coalesce(idem_bury.content_type, 'application/octet-stream'), idem_bury.type,
                              idem_bury.headers, idem_bury.headers ->> 'traceparent');
    p.due_at := 'infinity';
    p.state := 'd';
    p.payload_slice := NULL;
    PERFORM idem.write_pending(slice, p);
END
$$;
COMMENT ON FUNCTION idem_bury(text, text, bigint, bytea, text, jsonb, text, text, text) IS 'Moves a message of a broker, whose lease this token holds, to the dead letters. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 53400 (idem.max_dead_letters), 54000 (the payload is too large), 55000 (the lease is lost).';

CREATE FUNCTION idem_bury(
    id           uuid,
    destination  text,
    token        bigint,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_bury(id::text, destination, token, payload, error, headers, key, type, content_type);
COMMENT ON FUNCTION idem_bury(uuid, text, bigint, bytea, text, jsonb, text, text, text) IS 'Moves a message of a broker, whose lease this token holds, to the dead letters. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006, 53400 (idem.max_dead_letters), 54000 (the payload is too large), 55000 (the lease is lost).';

-- A broker that delivers the message again finds the same letter: the hash leaves out everything that differs between deliveries.
CREATE FUNCTION idem.hash_of_message(source text, headers jsonb, key text, type text, payload bytea) RETURNS uuid
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN substr(encode(sha256(sha256(convert_to(jsonb_build_array(source, coalesce(headers, '{}'), key, type)::text, 'UTF8')) || sha256(payload)), 'hex'), 1, 32)::uuid;
COMMENT ON FUNCTION idem.hash_of_message(text, jsonb, text, text, bytea) IS 'The key of a dead letter whose message has no id.';

-- The lease and the letter are one statement: without the letter there was no attempt.
CREATE FUNCTION idem_reject(
    id           text,
    destination  text,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL,
    source       text  DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    identity text;
    lease    record;
    carried  jsonb := headers;
BEGIN
    IF payload IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'payload and error must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(source) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'source is empty or too long'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the queue, subject or topic of the message, of 1 to 1024 bytes.';
    END IF;
    PERFORM idem.check_lease_transaction();
    identity := coalesce(idem_reject.id, idem.hash_of_message(source, headers, idem_reject.key, idem_reject.type, payload)::text);
    IF source IS NOT NULL THEN
        carried := coalesce(headers, '{}') || jsonb_build_object('idem-source-topic', source);
    END IF;
    SELECT a.outcome, a.token INTO lease FROM @extschema@.idem_acquire(identity, idem_reject.destination, '1 minute') a;
    IF lease.outcome IN ('duplicate', 'dead') THEN
        RETURN false;
    ELSIF lease.outcome = 'in_progress' THEN
        RAISE EXCEPTION 'message "%" of destination "%" is in progress', identity, idem_reject.destination
            USING ERRCODE = 'lock_not_available', HINT = 'Another process holds it, or it waits for its next attempt: reject it again later.';
    END IF;
    PERFORM @extschema@.idem_bury(identity, idem_reject.destination, lease.token, payload, error, carried, idem_reject.key, idem_reject.type, idem_reject.content_type);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_reject(text, text, bytea, text, jsonb, text, text, text, text) IS 'Keeps a message of a broker, which no lease holds, as a dead letter: acknowledge it after the commit. False: it is a dead letter already, or was processed. A message without an id (null) gets a UUID, a hash of source, headers, key, type and payload. source is its queue, subject or topic, and becomes the header idem-source-topic. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 53400 (idem.max_dead_letters), 54000 (the payload is too large), 55P03 (the message is in progress).';

CREATE FUNCTION idem_reject(
    id           uuid,
    destination  text,
    payload      bytea,
    error        text,
    headers      jsonb DEFAULT NULL,
    key          text  DEFAULT NULL,
    type         text  DEFAULT NULL,
    content_type text  DEFAULT NULL,
    source       text  DEFAULT NULL
) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_reject(id::text, destination, payload, error, headers, key, type, content_type, source);
COMMENT ON FUNCTION idem_reject(uuid, text, bytea, text, jsonb, text, text, text, text) IS 'Keeps a message of a broker, which no lease holds, as a dead letter: acknowledge it after the commit. False: it is a dead letter already, or was processed. A message without an id (null) gets a UUID, a hash of source, headers, key, type and payload. source is its queue, subject or topic, and becomes the header idem-source-topic. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006, 53400 (idem.max_dead_letters), 54000 (the payload is too large), 55P03 (the message is in progress).';

-- Every function locks in the same order, so no two of them deadlock over one message: the claim, the pending message, the dead
-- letter. Functions for many messages skip what another transaction holds instead of waiting for it.

-- As in receiving: the pending message is written first, and the claim is looked for after that.
CREATE FUNCTION idem.requeue_letter(slice integer, p idem.pending_0, letter idem.dead_letter) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    payload_slice integer;
    claim         text;
BEGIN
    IF p.state <> 'd' THEN
        RETURN false;  -- the message was received again and is alive
    END IF;
    SELECT r.current INTO payload_slice FROM idem.payload_rotation r WHERE r.id = 1;
    IF p.key IS NOT NULL THEN
        PERFORM idem.delete_pending(slice, p);
    END IF;
    p.seq := nextval('idem.pending_seq');
    p.token := 0;
    p.due_at := clock_timestamp();
    p.received_at := letter.received_at;
    p.key := letter.key;
    p.destination := letter.destination;
    p.attempt := 0;
    p.payload_slice := payload_slice;
    p.state := 'r';
    p.id := letter.id;
    p.order_key := letter.order_key;
    p.errors := '[]';
    EXECUTE format('INSERT INTO %s SELECT ($1).*', idem.pending_table(slice)) USING p;
    claim := idem.claim_state(coalesce(letter.id, letter.key::text), (SELECT d.name FROM idem.destination d WHERE d.id = letter.destination));
    IF claim = 'in_progress' THEN
        RAISE EXCEPTION 'another transaction is claiming message "%"', coalesce(letter.id, letter.key::text)
            USING ERRCODE = 'lock_not_available', HINT = 'Try again when that transaction has ended.';
    END IF;
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    IF claim = 'claimed' THEN
        PERFORM idem.delete_pending(slice, p);
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO %s (seq, payload, content_type, type, headers, traceparent) VALUES ($1, $2, $3, $4, $5, $6)', idem.payload_table(payload_slice))
      USING p.seq, letter.payload, letter.content_type, letter.type, letter.headers, letter.traceparent;
    PERFORM idem.tell_receivers();
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.requeue_letter(integer, idem.pending_0, idem.dead_letter) IS 'Makes a dead letter a ready message; false when the message was claimed meanwhile, or was received again. The caller has locked the pending message and then the letter.';

CREATE FUNCTION idem.delete_pending(slice integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DELETE FROM %s x WHERE x.key = $1 AND x.destination = $2', idem.pending_table(slice)) USING p.key, p.destination;
END
$$;
COMMENT ON FUNCTION idem.delete_pending(integer, idem.pending_0) IS 'Deletes a pending message.';

CREATE FUNCTION idem.find_letter(id text, destination text, for_update boolean) RETURNS idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter_key uuid := idem.key_of(find_letter.id);
    number     integer := idem.find_destination(find_letter.destination);
    letter     idem.dead_letter;
BEGIN
    IF for_update THEN
        SELECT l.* INTO letter FROM idem.dead_letter l WHERE l.key = letter_key AND l.destination = number FOR UPDATE;
    ELSE
        SELECT l.* INTO letter FROM idem.dead_letter l WHERE l.key = letter_key AND l.destination = number;
    END IF;
    IF letter.id <> find_letter.id THEN
        RAISE EXCEPTION 'the key of this message id belongs to another id of destination "%"', find_letter.destination
            USING ERRCODE = 'integrity_constraint_violation', HINT = format('The other id is %s.', letter.id);
    END IF;
    RETURN letter;
END
$$;
COMMENT ON FUNCTION idem.find_letter(text, text, boolean) IS 'The dead letter of a message; a row of nulls when there is none. Errors: 22004, 22023, 23000.';

CREATE FUNCTION idem_requeue(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice  integer;
    p      idem.pending_0;
    letter idem.dead_letter;
BEGIN
    -- The arguments are checked before the transaction is.
    PERFORM idem.key_of(idem_requeue.id), idem.find_destination(idem_requeue.destination);
    PERFORM idem.check_lease_transaction();
    slice := idem.enter_pending();
    p := idem.find_pending(slice, idem.key_of(idem_requeue.id), idem.find_destination(idem_requeue.destination));
    letter := idem.find_letter(idem_requeue.id, idem_requeue.destination, true);
    RETURN letter.key IS NOT NULL AND idem.requeue_letter(slice, p, letter);
END
$$;
COMMENT ON FUNCTION idem_requeue(text, text) IS 'Makes a dead letter ready again: due now, last of its key, with all its attempts. False: there is no dead letter, or the message was claimed meanwhile (its letter is deleted then). Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 55P03 (another transaction is claiming the message).';

CREATE FUNCTION idem_requeue(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_requeue(id::text, destination);
COMMENT ON FUNCTION idem_requeue(uuid, text) IS 'Makes a dead letter ready again: due now, last of its key, with all its attempts. False: there is no dead letter, or the message was claimed meanwhile (its letter is deleted then). Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

-- While the claim waited, another session may have requeued the letter, and then the message is alive: the claim is undone.
CREATE FUNCTION idem.take_letter(id text, destination text, wait boolean, OUT is_claimed boolean, OUT letter idem.dead_letter)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claim_outcome text;
BEGIN
    -- In the block, so that the exception undoes the claim.
    claim_outcome := (@extschema@.idem_claim(take_letter.id, take_letter.destination, take_letter.wait)).outcome;
    is_claimed := claim_outcome = 'claimed';
    IF claim_outcome = 'in_progress' THEN
        RETURN;
    END IF;
    DELETE FROM idem.dead_letter l
     WHERE l.key = idem.key_of(take_letter.id) AND l.destination = idem.find_destination(take_letter.destination)
    RETURNING l.* INTO letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'ID001';
    END IF;
EXCEPTION
    WHEN SQLSTATE 'ID001' THEN
        is_claimed := false;
        letter := NULL;
END
$$;
COMMENT ON FUNCTION idem.take_letter(text, text, boolean) IS 'Claims the message of a dead letter, deletes the letter and returns it; is_claimed is false when the message was processed meanwhile. A letter of nulls, and no claim: there is no letter any longer, or another transaction holds the message and wait is false.';

CREATE FUNCTION idem_discard(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.key_of(idem_discard.id), idem.find_destination(idem_discard.destination);
    PERFORM idem.check_lease_transaction();
    IF (idem.find_letter(idem_discard.id, idem_discard.destination, false)).key IS NULL THEN
        RETURN false;
    END IF;
    RETURN ((idem.take_letter(idem_discard.id, idem_discard.destination, true)).letter).key IS NOT NULL;
END
$$;
COMMENT ON FUNCTION idem_discard(text, text) IS 'Deletes a dead letter and claims its message, so that it stays known; false when there is none. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_discard(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_discard(id::text, destination);
COMMENT ON FUNCTION idem_discard(uuid, text) IS 'Deletes a dead letter and claims its message, so that it stays known; false when there is none. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem.some_letters(destination text, error_like text, max_messages integer) RETURNS SETOF idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d integer := idem.find_destination(some_letters.destination);
BEGIN
    PERFORM idem.check_error_like(error_like, 'error_like');
    IF max_messages IS NULL THEN
        RAISE EXCEPTION 'max_messages must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', max_messages
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
    PERFORM idem.check_lease_transaction();
    RETURN QUERY
        SELECT l.* FROM idem.dead_letter l
         WHERE l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
         ORDER BY l.seq LIMIT max_messages;
END
$$;
COMMENT ON FUNCTION idem.some_letters(text, text, integer) IS 'Dead letters whose last error matches the pattern, in the order of arrival, not locked. Errors: 22004, 22023, 25000, 25006.';

-- is_locked: this transaction holds the pending message and the letter, or the letter alone if nothing is pending.
CREATE FUNCTION idem.lock_letter(slice integer, seen idem.dead_letter, OUT is_locked boolean, OUT p idem.pending_0, OUT letter idem.dead_letter)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_pending boolean;
BEGIN
    EXECUTE format('SELECT true FROM %s x WHERE x.key = $1 AND x.destination = $2', idem.pending_table(slice))
       INTO is_pending USING seen.key, seen.destination;
    EXECUTE format('SELECT x.* FROM %s x WHERE x.key = $1 AND x.destination = $2 FOR UPDATE SKIP LOCKED', idem.pending_table(slice))
       INTO p USING seen.key, seen.destination;
    is_locked := false;
    IF is_pending IS NULL OR p.key IS NOT NULL THEN
        SELECT l.* INTO letter FROM idem.dead_letter l WHERE l.key = seen.key AND l.destination = seen.destination FOR UPDATE SKIP LOCKED;
        is_locked := FOUND;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.lock_letter(integer, idem.dead_letter) IS 'Locks the pending message and the dead letter of an identity without waiting, and returns both as they are now.';

CREATE FUNCTION idem_requeue_all(destination text, error_like text DEFAULT '%', max_messages integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice    integer;
    letter   idem.dead_letter;
    held     record;
    requeued integer := 0;
BEGIN
    FOR letter IN SELECT l.* FROM idem.some_letters(idem_requeue_all.destination, error_like, max_messages) l LOOP
        slice := coalesce(slice, idem.enter_pending());
        BEGIN
            SELECT * INTO held FROM idem.lock_letter(slice, letter);
            IF held.is_locked AND (held.letter).errors -> -1 ->> 'error' LIKE error_like AND idem.requeue_letter(slice, held.p, held.letter) THEN
                requeued := requeued + 1;
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;  -- another transaction is claiming it
        END;
    END LOOP;
    RETURN requeued;
END
$$;
COMMENT ON FUNCTION idem_requeue_all(text, text, integer) IS 'Makes dead letters of a destination ready again, at most max_messages, in the order of arrival: those whose last error matches the pattern. Returns how many. It does not count a message that was claimed meanwhile, and skips one that another transaction holds. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_discard_all(destination text, error_like text DEFAULT '%', max_messages integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    discarded integer := 0;
BEGIN
    FOR letter IN SELECT l.* FROM idem.some_letters(idem_discard_all.destination, error_like, max_messages) l LOOP
        IF ((idem.take_letter(coalesce(letter.id, letter.key::text), idem_discard_all.destination, false)).letter).key IS NOT NULL THEN
            discarded := discarded + 1;
        END IF;
    END LOOP;
    RETURN discarded;
END
$$;
COMMENT ON FUNCTION idem_discard_all(text, text, integer) IS 'Deletes dead letters of a destination, at most max_messages, and claims their messages: those whose last error matches the pattern. Returns how many. It skips a message that another transaction holds. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';
