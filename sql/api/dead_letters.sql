-- Failed messages: the retry policy of a destination, and the dead letters.

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
    PERFORM idem.check_transaction('idem_configure_retries()');
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
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be positive, not below base, and at most 30 days.';
    ELSIF NOT p.factor BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'factor is %', p.factor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF NOT p.jitter BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'jitter is %', p.jitter
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 0 and 1: the share of a back-off that is random.';
    END IF;
    FOREACH pattern IN ARRAY p.final_errors LOOP
        PERFORM idem.check_error_like(pattern, 'a pattern of final_errors');
    END LOOP;
    p.destination := idem.intern_destination(idem_configure_retries.destination);
    INSERT INTO idem.retry_policy
           (destination, max_attempts, base, factor, cap, jitter, final_errors)
    VALUES (p.destination, p.max_attempts, p.base, p.factor, p.cap, p.jitter, p.final_errors)
    ON CONFLICT ON CONSTRAINT retry_policy_pkey DO UPDATE
       SET max_attempts = excluded.max_attempts,
           base = excluded.base,
           factor = excluded.factor,
           cap = excluded.cap,
           jitter = excluded.jitter,
           final_errors = excluded.final_errors;
END
$$;
COMMENT ON FUNCTION idem_configure_retries(
    text, integer, interval, float8, interval, float8, text[]
) IS
    'Sets how a destination retries failed messages. max_attempts: the number of attempts of a '
    'message, 1 to 1,000 (default 10). The back-off after a failed attempt is base (0 to 1 day, '
    'default 1 second) * factor (1 to 1,000, default 2) ^ (attempt - 1), at most cap (up to 30 '
    'days, default 10 minutes). jitter: the share of the back-off that is random, 0 to 1 (default '
    '0.2). final_errors: LIKE patterns (default none); a message is not retried after an error '
    'that matches one of them. An argument that is null or omitted gets its default. Errors: '
    '22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby '
    'or read-only transaction).';

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
    table_number integer;
    p            idem.pending_0;
BEGIN
    IF payload IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'payload and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(idem_bury.key) NOT BETWEEN 1 AND 1024
          OR octet_length(type) NOT BETWEEN 1 AND 255
          OR octet_length(content_type) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'key, type or content_type is empty or too long'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A key has 1 to 1024 bytes, type and content_type 1 to 255.';
    END IF;
    PERFORM idem.check_transaction('idem_bury()');
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_bury.id, idem_bury.destination, idem_bury.token);
    PERFORM idem.check_letter_room(idem_bury.destination, payload, headers);
    -- For an exhausted message the caller passes the error that idem_acquire returned, which is
    -- recorded already.
    IF NOT idem.is_last_failure(p.errors, p.attempt, idem_bury.error) THEN
        p.errors := idem.note_failure(p.errors, p.attempt, idem_bury.error, false);
    END IF;
    p.order_key := coalesce(idem_bury.key, p.order_key);
    PERFORM idem.write_dead_letter(p, idem_bury.payload,
                                   coalesce(idem_bury.content_type, 'application/octet-stream'),
                                   idem_bury.type, idem_bury.headers,
                                   idem_bury.headers ->> 'traceparent');
    p.due_at := 'infinity';
    p.state := 'd';
    p.payload_slice := NULL;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem_bury(text, text, bigint, bytea, text, jsonb, text, text, text) IS
    'Moves a message of a broker to the dead letters. The token of idem_acquire proves the lease. '
    'headers: a JSON object. key: the ordering key, 1 to 1,024 bytes. type and content_type '
    '(default application/octet-stream): 1 to 255 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 53400 (idem.max_dead_letters), 54000 '
    '(payload and headers are larger than idem.max_payload), 55000 (the lease is lost).';

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
RETURN @extschema@.idem_bury(id::text, destination, token, payload, error, headers, key, type,
                             content_type);

-- The lease and the dead letter are written in one statement, so a failure counts no attempt.
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
        RAISE EXCEPTION 'payload and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers is %', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON object.';
    ELSIF octet_length(source) NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'source is empty or too long'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give the queue, subject or topic of the message, of 1 to 1024 bytes.';
    END IF;
    PERFORM idem.check_transaction('idem_reject()');
    identity := coalesce(
        idem_reject.id,
        idem.hash_of_message(source, headers, idem_reject.key, idem_reject.type, payload)::text);
    IF source IS NOT NULL THEN
        carried := coalesce(headers, '{}') || jsonb_build_object('idem-source-topic', source);
    END IF;
    LOOP
        SELECT a.outcome, a.token INTO lease
          FROM @extschema@.idem_acquire(identity, idem_reject.destination,
                                        '1 minute'::interval) a;
        EXIT WHEN lease.outcome <> 'in_progress'
               OR NOT idem.end_back_off(identity, idem_reject.destination);
    END LOOP;
    IF lease.outcome IN ('duplicate', 'dead') THEN
        RETURN false;
    ELSIF lease.outcome = 'in_progress' THEN
        RAISE EXCEPTION 'message "%" of destination "%" is in progress',
            identity, idem_reject.destination
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Another process holds its lease or is claiming it, or it was received '
                         'and idem_next returns it: reject it again later.';
    END IF;
    PERFORM @extschema@.idem_bury(
        identity, idem_reject.destination, lease.token, payload, error, carried,
        idem_reject.key, idem_reject.type, idem_reject.content_type);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_reject(text, text, bytea, text, jsonb, text, text, text, text) IS
    'Stores a message of a broker that is not leased as a dead letter, also while it waits for a '
    'retry. Acknowledge the message to its broker after the commit. Returns false if the message '
    'is a dead letter already or was processed. A message without an id (null) gets a UUID, a '
    'hash of source, headers, key, type and payload. source: the queue, subject or topic of the '
    'message, 1 to 1,024 bytes; it is stored as the header idem-source-topic. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 53400 '
    '(idem.max_dead_letters), 54000 (payload and headers are larger than idem.max_payload), 55P03 '
    '(the message is in progress).';

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
RETURN @extschema@.idem_reject(id::text, destination, payload, error, headers, key, type,
                               content_type, source);

CREATE FUNCTION idem_requeue(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    held         record;
BEGIN
    -- These two calls only check the arguments. They come first, so that a wrong argument is
    -- reported at every isolation level.
    PERFORM idem.key_of(idem_requeue.id), idem.find_destination(idem_requeue.destination);
    PERFORM idem.check_transaction('idem_requeue()');
    table_number := idem.enter_pending();
    SELECT * INTO held
      FROM idem.find_letter(table_number, idem_requeue.id, idem_requeue.destination);
    IF (held.letter).key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM idem.check_live(held.p, held.letter);
    PERFORM idem.requeue_letter(table_number, held.p, held.letter);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_requeue(text, text) IS
    'Makes a dead letter a pending message again: it is due now, after all other messages of its '
    'ordering key, and has all its attempts. Returns false if there is no dead letter. Errors: '
    '22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of '
    'another id), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 '
    '(the message was processed after it became a dead letter).';

CREATE FUNCTION idem_requeue(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_requeue(id::text, destination);

CREATE FUNCTION idem_discard(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held record;
BEGIN
    PERFORM idem.key_of(idem_discard.id), idem.find_destination(idem_discard.destination);
    PERFORM idem.check_transaction('idem_discard()');
    SELECT * INTO held
      FROM idem.find_letter(idem.enter_pending(), idem_discard.id, idem_discard.destination);
    IF (held.letter).key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM idem.take_letter_or_fail(held.p, held.letter, idem_discard.destination);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_discard(text, text) IS
    'Deletes a dead letter and claims its message, so that the message remains known as '
    'processed. Claims nothing if the message was processed after it became a dead letter. '
    'Returns false if there is no dead letter. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (the hash of this id is the hash of another id), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 55P03 (another transaction is claiming '
    'the message).';

CREATE FUNCTION idem_discard(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_discard(id::text, destination);

CREATE FUNCTION idem_requeue_all(
    destination  text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    letter       idem.dead_letter;
    held         record;
    requeued     integer := 0;
BEGIN
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_requeue_all.destination, error_like, max_messages, true) l
    LOOP
        table_number := coalesce(table_number, idem.enter_pending());
        SELECT * INTO held FROM idem.lock_letter(table_number, letter);
        IF (held.letter).key IS NOT NULL AND (held.p).state = 'd' THEN
            PERFORM idem.requeue_letter(table_number, held.p, held.letter);
            requeued := requeued + 1;
        END IF;
    END LOOP;
    RETURN requeued;
END
$$;
COMMENT ON FUNCTION idem_requeue_all(text, text, integer) IS
    'Requeues dead letters of a destination, in the order of arrival and at most max_messages (1 '
    'to 10,000): those with a last error that matches the LIKE pattern error_like. Returns their '
    'number. Skips a message that was processed after it became a dead letter (the column '
    'processed of idem.dead_letters) or that another transaction holds. See idem_requeue. Errors: '
    '22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby '
    'or read-only transaction).';

CREATE FUNCTION idem_discard_all(
    destination  text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    letter       idem.dead_letter;
    held         record;
    discarded    integer := 0;
BEGIN
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_discard_all.destination, error_like, max_messages, false) l
    LOOP
        table_number := coalesce(table_number, idem.enter_pending());
        SELECT * INTO held FROM idem.lock_letter(table_number, letter);
        IF (held.letter).key IS NOT NULL
           AND idem.take_letter(held.p, held.letter, idem_discard_all.destination) THEN
            discarded := discarded + 1;
        END IF;
    END LOOP;
    RETURN discarded;
END
$$;
COMMENT ON FUNCTION idem_discard_all(text, text, integer) IS
    'Deletes dead letters of a destination, in the order of arrival and at most max_messages (1 '
    'to 10,000): those with a last error that matches the LIKE pattern error_like. Claims their '
    'messages and returns their number. Skips a message that another transaction holds. See '
    'idem_discard. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_forward(id text, destination text, topic text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held record;
BEGIN
    PERFORM idem.key_of(idem_forward.id),
            idem.find_destination(idem_forward.destination),
            idem.check_topic(idem_forward.topic);
    PERFORM idem.check_transaction('idem_forward()'), idem.check_has_relay();
    SELECT * INTO held
      FROM idem.find_letter(idem.enter_pending(), idem_forward.id, idem_forward.destination);
    IF (held.letter).key IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM idem.check_live(held.p, held.letter);
    PERFORM idem.take_letter_or_fail(held.p, held.letter, idem_forward.destination);
    RETURN idem.forward_letter(held.letter, idem_forward.destination, idem_forward.topic);
END
$$;
COMMENT ON FUNCTION idem_forward(text, text, text) IS
    'Sends a dead letter to a topic (1 to 255 bytes): claims its message, records the dead letter '
    'as an effect of the message, and deletes the dead letter. The effect has the payload, key, '
    'type, content type and headers of the dead letter and a new message id, so a consumer that '
    'identifies messages by the message id processes it as a new message. Returns the message id; '
    'null if there is no dead letter. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (the hash of this id is the hash of another id), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction), 55000 (there is no relay, or the message was processed '
    'after it became a dead letter), 55P03 (another transaction is claiming the message).';

CREATE FUNCTION idem_forward(id uuid, destination text, topic text) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_forward(id::text, destination, topic);

CREATE FUNCTION idem_forward_all(
    destination  text,
    topic        text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    letter       idem.dead_letter;
    held         record;
    forwarded    integer := 0;
BEGIN
    PERFORM idem.check_topic(idem_forward_all.topic), idem.check_has_relay();
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_forward_all.destination, error_like, max_messages, true) l
    LOOP
        table_number := coalesce(table_number, idem.enter_pending());
        SELECT * INTO held FROM idem.lock_letter(table_number, letter);
        IF (held.letter).key IS NOT NULL AND (held.p).state = 'd'
           AND idem.take_letter(held.p, held.letter, idem_forward_all.destination) THEN
            PERFORM idem.forward_letter(held.letter, idem_forward_all.destination,
                                        idem_forward_all.topic);
            forwarded := forwarded + 1;
        END IF;
    END LOOP;
    RETURN forwarded;
END
$$;
COMMENT ON FUNCTION idem_forward_all(text, text, text, integer) IS
    'Sends dead letters of a destination to a topic, in the order of arrival and at most '
    'max_messages (1 to 10,000): those with a last error that matches the LIKE pattern '
    'error_like. Returns their number. Skips a message that was processed after it became a dead '
    'letter or that another transaction holds. See idem_forward. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (there is no relay).';
