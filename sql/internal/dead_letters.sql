-- Dead letters: how they are found, requeued, discarded and forwarded.
--
-- The content of a dead letter is in idem.dead_letter, and its pending row stays, so that a
-- redelivery is recognized. A claim deletes the pending row only. So a dead letter without a dead
-- pending row is one of a processed message, which is never requeued or forwarded (55000). A
-- requeued message is a received one, with a new seq, no attempts and no errors. idem_discard and
-- idem_forward claim the message, so a redelivery is a duplicate; idem_discard of a processed
-- message claims nothing.

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

CREATE FUNCTION idem.check_letter_room(
    destination text,
    payload     bytea,
    headers     jsonb
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d    integer := idem.find_destination(check_letter_room.destination);
    most integer := current_setting('idem.max_dead_letters')::integer;
    n    bigint;
BEGIN
    -- Brokers limit the headers of a message, and this limit is not known here.
    PERFORM idem.check_payload(octet_length(payload)::bigint
                               + coalesce(octet_length(headers::text), 0));
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
COMMENT ON FUNCTION idem.check_letter_room(text, bytea, jsonb) IS
    'Checks that a message of a broker can become a dead letter. Errors: 53400 '
    '(idem.max_dead_letters), 54000 (payload and headers are larger than idem.max_payload).';

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

-- A dead letter is live while its pending row is dead. A claim deletes this row, so without it the
-- message was processed, also when the claim is forgotten. Only a person discards the dead letter.
-- These functions lock the pending row and then the dead letter. They do not wait for a claim while
-- they hold these locks. Functions for many messages skip rows that are locked.

CREATE FUNCTION idem.check_live(p idem.pending_0, letter idem.dead_letter) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p.state IS DISTINCT FROM 'd' THEN
        RAISE EXCEPTION 'message "%" was processed after it became a dead letter',
            coalesce(letter.id, letter.key::text)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Discard the dead letter with idem_discard.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_live(idem.pending_0, idem.dead_letter) IS
    'Checks that the message of a dead letter was not processed. Error: 55000.';

-- A claim in progress waits for the lock of the pending row, and then deletes the row.
CREATE FUNCTION idem.requeue_letter(
    table_number integer,
    p            idem.pending_0,
    letter       idem.dead_letter
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    SELECT r.current INTO p.payload_slice FROM idem.payload_rotation r WHERE r.id = 1;
    p.seq := nextval('idem.pending_seq');
    p.token := 0;
    p.due_at := clock_timestamp();
    p.attempt := 0;
    p.state := 'r';
    p.errors := '[]';
    PERFORM idem.write_pending(table_number, p);
    EXECUTE format('INSERT INTO %s (seq, payload, content_type, type, headers, traceparent) '
                   'VALUES ($1, $2, $3, $4, $5, $6)', idem.payload_table(p.payload_slice))
      USING p.seq, letter.payload, letter.content_type, letter.type, letter.headers,
            letter.traceparent;
    PERFORM idem.wake_consumers();
END
$$;
COMMENT ON FUNCTION idem.requeue_letter(integer, idem.pending_0, idem.dead_letter) IS
    'Makes a live dead letter a pending message that is ready. The caller has locked the pending '
    'message and then the dead letter.';

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

CREATE FUNCTION idem.find_letter(
    table_number integer,
    id           text,
    destination  text,
    OUT p        idem.pending_0,
    OUT letter   idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter_key uuid := idem.key_of(find_letter.id);
    number     integer := idem.find_destination(find_letter.destination);
BEGIN
    p := idem.find_pending(table_number, letter_key, number);
    SELECT l.* INTO letter FROM idem.dead_letter l
     WHERE l.key = letter_key AND l.destination = number
       FOR UPDATE;
    PERFORM idem.check_same_id(letter.key, letter.id, find_letter.id, find_letter.destination);
END
$$;
COMMENT ON FUNCTION idem.find_letter(integer, text, text) IS
    'Locks the pending message and then the dead letter of an identity, and returns them; rows of '
    'nulls if there are none. Errors: 22004, 22023, 23000.';

CREATE FUNCTION idem.take_letter(
    p           idem.pending_0,
    letter      idem.dead_letter,
    destination text
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claim_outcome text;
BEGIN
    IF p.state = 'd' THEN
        claim_outcome := (@extschema@.idem_claim(
            coalesce(letter.id, letter.key::text), take_letter.destination, false,
            NULL::bytea, NULL::timestamptz)).outcome;
        IF claim_outcome = 'in_progress' THEN
            RETURN false;
        END IF;
    END IF;
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.take_letter(idem.pending_0, idem.dead_letter, text) IS
    'Claims the message of a dead letter, unless it was processed, and deletes the dead letter. '
    'The caller has locked the pending message and then the dead letter. Returns false and '
    'changes nothing if another transaction is claiming the message.';

CREATE FUNCTION idem.take_letter_or_fail(
    p           idem.pending_0,
    letter      idem.dead_letter,
    destination text
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT idem.take_letter(p, letter, take_letter_or_fail.destination) THEN
        RAISE EXCEPTION 'another transaction is claiming message "%"',
            coalesce(letter.id, letter.key::text)
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again when that transaction has ended.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.take_letter_or_fail(idem.pending_0, idem.dead_letter, text) IS
    'Takes a dead letter as idem.take_letter does. Error: 55P03 (another transaction is claiming '
    'the message).';

CREATE FUNCTION idem.some_letters(
    destination  text,
    error_like   text,
    max_messages integer,
    only_live    boolean
) RETURNS SETOF idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    d         integer := idem.find_destination(some_letters.destination);
    processed bigint;
BEGIN
    PERFORM idem.check_error_like(error_like, 'error_like');
    IF max_messages IS NULL THEN
        RAISE EXCEPTION 'max_messages must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', max_messages
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
    PERFORM idem.check_transaction('a function of dead letters');
    SELECT count(*) INTO processed FROM idem.dead_letter l
     WHERE only_live AND l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
       AND NOT EXISTS (SELECT FROM idem.live_letter v WHERE v.key = l.key AND v.destination = d);
    IF processed > 0 THEN
        RAISE NOTICE 'skips % dead letters of processed messages', processed
            USING HINT = 'See the column processed of idem.dead_letters, and discard them.';
    END IF;
    RETURN QUERY
        SELECT l.* FROM idem.dead_letter l
         WHERE l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
           AND (NOT only_live
                OR EXISTS (SELECT FROM idem.live_letter v
                            WHERE v.key = l.key AND v.destination = d))
         ORDER BY l.seq LIMIT max_messages;
END
$$;
COMMENT ON FUNCTION idem.some_letters(text, text, integer, boolean) IS
    'Returns dead letters with a last error that matches the pattern, in the order of arrival, '
    'without locking them. only_live: without those of processed messages, whose number it reports '
    'as a notice. Errors: 22004, 22023, 25000, 25006.';

-- A message that becomes a dead letter again has another seq, and is not the one that was seen.
CREATE FUNCTION idem.lock_letter(
    table_number integer,
    seen         idem.dead_letter,
    OUT p        idem.pending_0,
    OUT letter   idem.dead_letter
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_pending boolean;
BEGIN
    EXECUTE format('SELECT x.* FROM %s x WHERE x.key = $1 AND x.destination = $2 '
                   'FOR UPDATE SKIP LOCKED', idem.pending_table(table_number))
       INTO p USING seen.key, seen.destination;
    IF p.key IS NULL THEN
        EXECUTE format('SELECT true FROM %s x WHERE x.key = $1 AND x.destination = $2',
                       idem.pending_table(table_number))
           INTO is_pending USING seen.key, seen.destination;
    END IF;
    IF is_pending IS NULL THEN
        SELECT l.* INTO letter FROM idem.dead_letter l
         WHERE l.key = seen.key AND l.destination = seen.destination AND l.seq = seen.seq
           FOR UPDATE SKIP LOCKED;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.lock_letter(integer, idem.dead_letter) IS
    'Locks the pending message and then the dead letter without waiting, and returns them. The '
    'dead letter is null if another transaction holds one of the two or has changed the dead '
    'letter.';

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
-- publication. runtime/src/transport/headers.rs has the same list.
CREATE FUNCTION idem.headers_to_forward(headers jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.jsonb_object_agg(h.name, h.value)
          FROM jsonb_each(headers) AS h(name, value)
         WHERE pg_catalog.lower(h.name) <> ALL
                   ('{bcc,cc,message-id,x-acquired-count,x-death,x-delivery-count}'::text[])
           AND h.name NOT ILIKE 'x-first-death-%' AND h.name NOT ILIKE 'x-last-death-%'
           AND h.name NOT ILIKE 'nats-%'
           AND h.name NOT ILIKE 'idem-source-%' AND h.name NOT ILIKE 'idem-dead-letter-%');
COMMENT ON FUNCTION idem.headers_to_forward(jsonb) IS
    'Returns the headers of a dead letter without those that describe its former delivery.';

CREATE FUNCTION idem.forward_letter(
    letter      idem.dead_letter,
    destination text,
    topic       text
) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN idem.record_letter(coalesce((letter).id, (letter).key::text), destination, topic,
                          (letter).payload, (letter).order_key, (letter).type,
                          idem.headers_to_forward((letter).headers), (letter).traceparent,
                          (letter).content_type);
COMMENT ON FUNCTION idem.forward_letter(idem.dead_letter, text, text) IS
    'Records a dead letter as an effect of its message, which the current transaction has '
    'claimed, and returns the message id of the effect.';
