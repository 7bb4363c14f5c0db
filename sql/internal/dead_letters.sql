-- Dead letters: how they are found, requeued, discarded and forwarded.

CREATE FUNCTION idem.check_error_like(pattern text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern IS NULL THEN
        RAISE EXCEPTION '% must not be null', what USING ERRCODE = 'null_value_not_allowed';
    -- This literal has the same meaning with both values of standard_conforming_strings, which the
    -- caller may have set.
    ELSIF pattern ~ E'^([^\\\\]|\\\\.)*\\\\$' THEN
        RAISE EXCEPTION '% ends with the escape character', what
            USING ERRCODE = 'invalid_parameter_value', HINT = E'Write \\\\ for a backslash.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_error_like(text, text) IS
    'Checks a LIKE pattern; what is its name in the error message. Errors: 22004, 22023.';

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
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'The payload of a dead letter has at most 64 MiB: store the message '
                         'elsewhere.';
    END IF;
    SELECT count(*) INTO n
      FROM (SELECT FROM idem.dead_letter l WHERE l.destination = d LIMIT most) l;
    IF n >= most THEN
        RAISE EXCEPTION 'destination "%" has reached the limit of % dead letters',
            check_letter_room.destination, n
            USING ERRCODE = 'configuration_limit_exceeded',
                  HINT = 'Requeue or discard dead letters of this destination, or raise '
                         'idem.max_dead_letters.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_letter_room(text, bytea) IS
    'Checks that a message of a broker can become a dead letter. Errors: 53400 '
    '(idem.max_dead_letters), 54000 (the payload is too large).';

-- The hash does not contain anything that differs between two deliveries of a message, so a
-- redelivered message has the same dead letter.
CREATE FUNCTION idem.hash_of_message(
    source  text,
    headers jsonb,
    key     text,
    type    text,
    payload bytea
) RETURNS uuid
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN substr(
           encode(sha256(sha256(pg_catalog.convert_to(
                             pg_catalog.jsonb_build_array(
                                 source, coalesce(headers, '{}'), key, type)::text,
                             'UTF8'))
                         || sha256(payload)),
                  'hex'),
           1, 32)::uuid;
COMMENT ON FUNCTION idem.hash_of_message(text, jsonb, text, text, bytea) IS
    'Returns the key of the dead letter of a message without an id.';

-- Transactions lock in this order: claim, pending row, dead letter. So two functions never deadlock
-- over one message. idem_complete is the exception: it locks the pending row first, and does not
-- wait for a claim after that. Functions for many messages skip rows that are locked.

-- Writes the pending message first and then looks for a claim, as idem_receive does.
CREATE FUNCTION idem.requeue_letter(
    table_number integer,
    p            idem.pending_0,
    letter       idem.dead_letter
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    payload_slice integer;
    claim         text;
BEGIN
    IF p.state <> 'd' THEN
        RETURN false;  -- the message was received again and is pending
    END IF;
    SELECT r.current INTO payload_slice FROM idem.payload_rotation r WHERE r.id = 1;
    IF p.key IS NOT NULL THEN
        PERFORM idem.delete_pending(table_number, p);
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
    p.stops_claims := false;
    p.id := letter.id;
    p.order_key := letter.order_key;
    p.errors := '[]';
    EXECUTE format('INSERT INTO %s SELECT ($1).*', idem.pending_table(table_number)) USING p;
    claim := idem.claim_state(
        coalesce(letter.id, letter.key::text),
        (SELECT d.name FROM idem.destination d WHERE d.id = letter.destination));
    IF claim = 'in_progress' THEN
        RAISE EXCEPTION 'another transaction is claiming message "%"',
            coalesce(letter.id, letter.key::text)
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again when that transaction has ended.';
    END IF;
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    IF claim = 'claimed' THEN
        PERFORM idem.delete_pending(table_number, p);
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO %s (seq, payload, content_type, type, headers, traceparent) '
                   'VALUES ($1, $2, $3, $4, $5, $6)', idem.payload_table(payload_slice))
      USING p.seq, letter.payload, letter.content_type, letter.type, letter.headers,
            letter.traceparent;
    PERFORM idem.wake_consumers();
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.requeue_letter(integer, idem.pending_0, idem.dead_letter) IS
    'Makes a dead letter a pending message that is ready. Returns false if the message was '
    'claimed meanwhile or was received again. The caller has locked the pending message and then '
    'the dead letter. Error: 55P03 (another transaction is claiming the message).';

-- No process works on a message that waits for a retry, so it can be leased at once. The function
-- skips a row that another transaction has locked, because it must not wait for a claimer that
-- waits for a lease.
CREATE FUNCTION idem.end_back_off(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ended integer;
BEGIN
    EXECUTE format($sql$
        WITH waiting AS MATERIALIZED (
            SELECT x.key, x.destination FROM %1$s x
             WHERE x.key = $1 AND x.destination = $2 AND x.state = 'w'
               AND x.payload_slice IS NULL AND x.due_at > clock_timestamp()
               FOR UPDATE SKIP LOCKED
        )
        UPDATE %1$s p SET due_at = clock_timestamp()
          FROM waiting w WHERE p.key = w.key AND p.destination = w.destination
        $sql$, idem.pending_table(idem.enter_pending()))
      USING idem.key_of(id), idem.find_destination(destination);
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended > 0;
END
$$;
COMMENT ON FUNCTION idem.end_back_off(text, text) IS
    'Makes a message of a broker due that waits for a retry. Returns false if there is no such '
    'message.';

CREATE FUNCTION idem.delete_pending(table_number integer, p idem.pending_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DELETE FROM %s x WHERE x.key = $1 AND x.destination = $2',
                   idem.pending_table(table_number))
      USING p.key, p.destination;
END
$$;
COMMENT ON FUNCTION idem.delete_pending(integer, idem.pending_0) IS 'Deletes a pending message.';

CREATE FUNCTION idem.find_letter(
    id          text,
    destination text,
    for_update  boolean
) RETURNS idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter_key uuid := idem.key_of(find_letter.id);
    number     integer := idem.find_destination(find_letter.destination);
    letter     idem.dead_letter;
BEGIN
    IF for_update THEN
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = letter_key AND l.destination = number
           FOR UPDATE;
    ELSE
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = letter_key AND l.destination = number;
    END IF;
    IF letter.id <> find_letter.id THEN
        RAISE EXCEPTION 'another message id of destination "%" has the same key',
            find_letter.destination
            USING ERRCODE = 'integrity_constraint_violation',
                  HINT = format('The other id is %s.', letter.id);
    END IF;
    RETURN letter;
END
$$;
COMMENT ON FUNCTION idem.find_letter(text, text, boolean) IS
    'Returns the dead letter of a message, locked if for_update is true; a row of nulls if there '
    'is none. Errors: 22004, 22023, 23000.';

-- While the claim waits, another session can requeue the dead letter. The message is then pending
-- again, so the claim is undone.
CREATE FUNCTION idem.take_letter(
    id             text,
    destination    text,
    wait           boolean,
    OUT is_claimed boolean,
    OUT letter     idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claim_outcome text;
BEGIN
    -- The claim is inside the block with the exception handler, so that the exception undoes it.
    claim_outcome := (@extschema@.idem_claim(
        take_letter.id, take_letter.destination, take_letter.wait, NULL::bytea,
        NULL::timestamptz)).outcome;
    is_claimed := claim_outcome = 'claimed';
    IF claim_outcome = 'in_progress' THEN
        RETURN;
    END IF;
    DELETE FROM idem.dead_letter l
     WHERE l.key = idem.key_of(take_letter.id)
       AND l.destination = idem.find_destination(take_letter.destination)
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
COMMENT ON FUNCTION idem.take_letter(text, text, boolean) IS
    'Claims the message of a dead letter, deletes the dead letter and returns it. is_claimed is '
    'false if the message was processed meanwhile. The dead letter is null, and the message is '
    'not claimed, if the dead letter no longer exists, or if another transaction holds the '
    'message and wait is false.';

CREATE FUNCTION idem.some_letters(
    destination  text,
    error_like   text,
    max_messages integer
) RETURNS SETOF idem.dead_letter
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
    PERFORM idem.check_transaction('a function of dead letters');
    RETURN QUERY
        SELECT l.* FROM idem.dead_letter l
         WHERE l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
         ORDER BY l.seq LIMIT max_messages;
END
$$;
COMMENT ON FUNCTION idem.some_letters(text, text, integer) IS
    'Returns dead letters with a last error that matches the pattern, in the order of arrival, '
    'without locking them. Errors: 22004, 22023, 25000, 25006.';

-- is_locked: whether this transaction has locked the pending message and the dead letter, or the
-- dead letter alone if no message is pending.
CREATE FUNCTION idem.lock_letter(
    table_number  integer,
    seen          idem.dead_letter,
    OUT is_locked boolean,
    OUT p         idem.pending_0,
    OUT letter    idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_pending boolean;
BEGIN
    EXECUTE format('SELECT true FROM %s x WHERE x.key = $1 AND x.destination = $2',
                   idem.pending_table(table_number))
       INTO is_pending USING seen.key, seen.destination;
    EXECUTE format('SELECT x.* FROM %s x WHERE x.key = $1 AND x.destination = $2 '
                   'FOR UPDATE SKIP LOCKED', idem.pending_table(table_number))
       INTO p USING seen.key, seen.destination;
    is_locked := false;
    IF is_pending IS NULL OR p.key IS NOT NULL THEN
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = seen.key AND l.destination = seen.destination
           FOR UPDATE SKIP LOCKED;
        is_locked := FOUND;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.lock_letter(integer, idem.dead_letter) IS
    'Locks the pending message and the dead letter of an identity without waiting, and returns '
    'their current rows.';

CREATE FUNCTION idem.check_topic(topic text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(topic) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'topic has % bytes', octet_length(topic)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a topic of 1 to 255 bytes.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_topic(text) IS
    'Checks the topic of an effect. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_has_relay() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM idem.relay r WHERE r.dropped_at IS NULL) THEN
        RAISE EXCEPTION 'there is no relay to publish the dead letter'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create a relay with idem_create_relay, and run it.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_has_relay() IS
    'Checks that there is a relay, so that the outbox keeps an effect until it is published. '
    'Error: 55000 (there is no relay).';

-- Some headers of the dead letter must not be forwarded, because brokers and consumers would apply
-- them to the new message: as its message id, as its number of deliveries, or as conditions of the
-- publication.
CREATE FUNCTION idem.headers_to_forward(headers jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.jsonb_object_agg(h.name, h.value)
          FROM jsonb_each(headers) AS h(name, value)
         WHERE h.name NOT IN ('message-id', 'x-acquired-count', 'x-delivery-count', 'x-death')
           AND h.name NOT LIKE 'x-first-death-%' AND h.name NOT LIKE 'x-last-death-%'
           AND h.name NOT ILIKE 'nats-%'
           AND h.name NOT LIKE 'idem-source-%' AND h.name NOT LIKE 'idem-dead-letter-%');
COMMENT ON FUNCTION idem.headers_to_forward(jsonb) IS
    'Returns the headers of a dead letter without those that describe its former delivery.';

CREATE FUNCTION idem.forward_letter(
    id          text,
    destination text,
    topic       text,
    wait        boolean
) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken  record;
    letter idem.dead_letter;
BEGIN
    SELECT t.is_claimed, t.letter INTO taken
      FROM idem.take_letter(forward_letter.id, forward_letter.destination, forward_letter.wait) t;
    letter := taken.letter;
    -- If the message was processed meanwhile, its dead letter is deleted and not forwarded.
    IF letter.key IS NULL OR NOT taken.is_claimed THEN
        RETURN NULL;
    END IF;
    RETURN idem.record_letter(forward_letter.id, forward_letter.destination, forward_letter.topic,
                              letter.payload, letter.order_key, letter.type,
                              idem.headers_to_forward(letter.headers), letter.traceparent,
                              letter.content_type);
END
$$;
COMMENT ON FUNCTION idem.forward_letter(text, text, text, boolean) IS
    'Claims the message of a dead letter, records the dead letter as an effect of the message and '
    'deletes the dead letter. Returns the message id of the effect; null if the dead letter no '
    'longer exists, if the message was processed meanwhile (then the dead letter is deleted), or '
    'if another transaction holds the message and wait is false.';
