-- Failure: how often a destination tries, what has died, and what becomes of it.

CREATE FUNCTION idem.check_error_like(pattern text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF pattern IS NULL THEN
        RAISE EXCEPTION '% must not be null', what USING ERRCODE = 'null_value_not_allowed';
    -- Written so that standard_conforming_strings of the caller has no say.
    ELSIF pattern ~ E'^([^\\\\]|\\\\.)*\\\\$' THEN
        RAISE EXCEPTION '% ends with the escape character', what
            USING ERRCODE = 'invalid_parameter_value', HINT = E'Write \\\\ for a backslash.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_error_like(text, text) IS 'Errors: 22004, 22023.';

CREATE FUNCTION idem_configure_retries(
    destination  text,
    max_attempts integer  DEFAULT 10,
    base         interval DEFAULT '1 second',
    factor       float8   DEFAULT 2,
    cap          interval DEFAULT '10 minutes',
    jitter       float8   DEFAULT 0.2,
    final_errors text[]   DEFAULT '{}'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    pattern text;
BEGIN
    IF max_attempts IS NULL OR base IS NULL OR factor IS NULL OR cap IS NULL OR jitter IS NULL OR final_errors IS NULL THEN
        RAISE EXCEPTION 'max_attempts, base, factor, cap, jitter and final_errors must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts is %', max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF base NOT BETWEEN '0' AND '1 day' THEN
        RAISE EXCEPTION 'base is %', base
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 0 and 1 day.';
    ELSIF cap NOT BETWEEN base AND interval '30 days' OR cap <= '0' THEN
        RAISE EXCEPTION 'cap is %', cap
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be positive, not below base, and at most 30 days.';
    ELSIF NOT factor BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'factor is %', factor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1000.';
    ELSIF NOT jitter BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'jitter is %', jitter
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It is the share of a pause that is random: between 0 and 1.';
    END IF;
    FOREACH pattern IN ARRAY final_errors LOOP
        PERFORM idem.check_error_like(pattern, 'a pattern of final_errors');
    END LOOP;
    INSERT INTO idem.retry_policy (destination, max_attempts, base, factor, cap, jitter, final_errors)
    VALUES (idem.intern_destination(idem_configure_retries.destination), idem_configure_retries.max_attempts, idem_configure_retries.base,
            idem_configure_retries.factor, idem_configure_retries.cap, idem_configure_retries.jitter, idem_configure_retries.final_errors)
    ON CONFLICT (destination) DO UPDATE
       SET max_attempts = excluded.max_attempts, base = excluded.base, factor = excluded.factor, cap = excluded.cap, jitter = excluded.jitter,
           final_errors = excluded.final_errors;
END
$$;
COMMENT ON FUNCTION idem_configure_retries(text, integer, interval, float8, interval, float8, text[]) IS 'How a destination retries: at most max_attempts; before the next one it rests base * factor ^ (attempt - 1), at most cap, of which the share jitter is random; an error that a pattern (LIKE) of final_errors matches is not tried again. Errors: 22004, 22023, 25006.';

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
    w     idem.work_0;
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
    PERFORM idem.check_work();
    slice := idem.enter_work();
    w := idem.held_work(slice, idem_bury.id, idem_bury.destination, idem_bury.token);
    -- Whoever buries what is exhausted gives the error that it was told: that one is noted already.
    IF (w.errors -> -1 ->> 'error', (w.errors -> -1 ->> 'attempt')::integer) IS DISTINCT FROM (left(idem_bury.error, 2000), w.attempt) THEN
        w.errors := idem.noted(w.errors, w.attempt, idem_bury.error);
    END IF;
    w.order_key := coalesce(idem_bury.key, w.order_key);
    PERFORM idem.write_letter(w, idem_bury.payload, coalesce(idem_bury.content_type, 'application/octet-stream'), idem_bury.type,
                              idem_bury.headers, idem_bury.headers ->> 'traceparent');
    w.due_at := 'infinity';
    w.leased := false;
    w.body := NULL;
    PERFORM idem.write_work(slice, w);
END
$$;
COMMENT ON FUNCTION idem_bury(text, text, bigint, bytea, text, jsonb, text, text, text) IS 'Moves a message of a broker, whose lease this token holds, to the dead letters. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';

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
COMMENT ON FUNCTION idem_bury(uuid, text, bigint, bytea, text, jsonb, text, text, text) IS 'Moves a message of a broker, whose lease this token holds, to the dead letters. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006, 55000 (the lease is lost).';

-- As in receiving: the work is written first, and then it is looked whether the message has been claimed. A claimer that has not committed
-- waits for this transaction and takes the work away.
CREATE FUNCTION idem.requeue_letter(slice integer, letter idem.dead_letter) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    w      idem.work_0 := idem.find_work(slice, letter.key, letter.destination);
    is_new boolean := w.key IS NULL;
    into_body integer;
BEGIN
    IF w.due_at < 'infinity' THEN
        RETURN false;  -- it came anew and is alive
    END IF;
    SELECT t.current INTO into_body FROM idem.body_turn t WHERE t.id = 1;
    w.seq := nextval('idem.work_seq');
    w.token := 0;
    w.due_at := clock_timestamp();
    w.received_at := letter.received_at;
    w.key := letter.key;
    w.destination := letter.destination;
    w.attempt := 0;
    w.body := into_body;
    w.leased := false;
    w.id := letter.id;
    w.order_key := letter.order_key;
    w.errors := '[]';
    IF NOT is_new THEN
        PERFORM idem.delete_work(slice, w);
    END IF;
    EXECUTE format('INSERT INTO idem.work_%s SELECT ($1).* ON CONFLICT DO NOTHING', slice) USING w;
    IF @extschema@.idem_is_claimed(coalesce(letter.id, letter.key::text), (SELECT d.name FROM idem.destination d WHERE d.id = letter.destination)) THEN
        PERFORM idem.delete_work(slice, w);
        DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
        RETURN false;
    END IF;
    EXECUTE format('INSERT INTO idem.body_%s (seq, payload, content_type, type, headers, traceparent) VALUES ($1, $2, $3, $4, $5, $6)', into_body)
      USING w.seq, letter.payload, letter.content_type, letter.type, letter.headers, letter.traceparent;
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
    PERFORM idem.tell_receivers();
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem.requeue_letter(integer, idem.dead_letter) IS 'Makes a dead letter work that is due; false when the message was claimed meanwhile, or came anew.';

CREATE FUNCTION idem.delete_work(slice integer, w idem.work_0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DELETE FROM idem.work_%s x WHERE x.key = $1 AND x.destination = $2', slice) USING w.key, w.destination;
END
$$;
COMMENT ON FUNCTION idem.delete_work(integer, idem.work_0) IS 'Deletes the work of an identity.';

-- The claim ends the work as any claim does.
CREATE FUNCTION idem.discard_letter(letter idem.dead_letter) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM @extschema@.idem_try_claim(coalesce(letter.id, letter.key::text), (SELECT d.name FROM idem.destination d WHERE d.id = letter.destination));
    DELETE FROM idem.dead_letter l WHERE l.key = letter.key AND l.destination = letter.destination;
END
$$;
COMMENT ON FUNCTION idem.discard_letter(idem.dead_letter) IS 'Claims the message of a dead letter, and deletes the letter.';

CREATE FUNCTION idem.find_letter(id text, destination text) RETURNS idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter idem.dead_letter;
BEGIN
    SELECT l.* INTO letter FROM idem.dead_letter l
     WHERE l.key = idem.key_of(find_letter.id) AND l.destination = idem.find_destination(find_letter.destination) FOR UPDATE;
    IF letter.id <> find_letter.id THEN
        RAISE EXCEPTION 'the key of this message id belongs to another id of destination "%"', find_letter.destination
            USING ERRCODE = 'integrity_constraint_violation', HINT = format('The other id is %s.', letter.id);
    END IF;
    RETURN letter;
END
$$;
COMMENT ON FUNCTION idem.find_letter(text, text) IS 'The dead letter of a message, locked; a row of nulls when there is none. Errors: 22004, 22023, 23000.';

CREATE FUNCTION idem_requeue(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice  integer;
    letter idem.dead_letter;
BEGIN
    -- Arguments first, then what the transaction is.
    PERFORM idem.key_of(idem_requeue.id), idem.find_destination(idem_requeue.destination);
    PERFORM idem.check_work();
    slice := idem.enter_work();
    letter := idem.find_letter(idem_requeue.id, idem_requeue.destination);
    RETURN letter.key IS NOT NULL AND idem.requeue_letter(slice, letter);
END
$$;
COMMENT ON FUNCTION idem_requeue(text, text) IS 'Gives a dead letter another life: due now, at the end of its key, with all its attempts. False: there is none, or the message was claimed meanwhile (its letter is gone then). Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_requeue(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_requeue(id::text, destination);
COMMENT ON FUNCTION idem_requeue(uuid, text) IS 'Gives a dead letter another life: due now, at the end of its key, with all its attempts. False: there is none, or the message was claimed meanwhile (its letter is gone then). Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_discard(id text, destination text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter idem.dead_letter;
BEGIN
    PERFORM idem.key_of(idem_discard.id), idem.find_destination(idem_discard.destination);
    PERFORM idem.check_work();
    letter := idem.find_letter(idem_discard.id, idem_discard.destination);
    IF letter.key IS NULL THEN
        RETURN false;
    END IF;
    PERFORM idem.discard_letter(letter);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_discard(text, text) IS 'Deletes a dead letter and claims its message, so that it stays known; false when there is none. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_discard(id uuid, destination text) RETURNS boolean
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_discard(id::text, destination);
COMMENT ON FUNCTION idem_discard(uuid, text) IS 'Deletes a dead letter and claims its message, so that it stays known; false when there is none. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem.some_letters(destination text, error_like text, max_messages integer) RETURNS SETOF idem.dead_letter
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
    PERFORM idem.check_work();
    RETURN QUERY
        SELECT l.* FROM idem.dead_letter l
         WHERE l.destination = d AND l.errors -> -1 ->> 'error' LIKE error_like
         ORDER BY l.seq LIMIT max_messages FOR UPDATE SKIP LOCKED;
END
$$;
COMMENT ON FUNCTION idem.some_letters(text, text, integer) IS 'Dead letters whose last error is like this, in the order in which they came, locked. Errors: 22004, 22023, 25000, 25006.';

CREATE FUNCTION idem_requeue_all(destination text, error_like text DEFAULT '%', max_messages integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slice    integer;
    letter   idem.dead_letter;
    requeued integer := 0;
BEGIN
    FOR letter IN SELECT l.* FROM idem.some_letters(idem_requeue_all.destination, error_like, max_messages) l LOOP
        slice := coalesce(slice, idem.enter_work());
        IF idem.requeue_letter(slice, letter) THEN
            requeued := requeued + 1;
        END IF;
    END LOOP;
    RETURN requeued;
END
$$;
COMMENT ON FUNCTION idem_requeue_all(text, text, integer) IS 'Gives dead letters of a destination another life, at most max_messages, in the order in which they came: those whose last error is like the pattern. Answers how many; what was claimed meanwhile is not counted. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_discard_all(destination text, error_like text DEFAULT '%', max_messages integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    discarded integer := 0;
BEGIN
    FOR letter IN SELECT l.* FROM idem.some_letters(idem_discard_all.destination, error_like, max_messages) l LOOP
        PERFORM idem.discard_letter(letter);
        discarded := discarded + 1;
    END LOOP;
    RETURN discarded;
END
$$;
COMMENT ON FUNCTION idem_discard_all(text, text, integer) IS 'Deletes dead letters of a destination, at most max_messages, and claims their messages: those whose last error is like the pattern. Answers how many. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';
