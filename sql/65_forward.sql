-- Forwarding a dead letter to a broker: the dead letter becomes an effect of its message.

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

-- Some headers of the dead letter must not be forwarded: brokers and consumers would apply them to
-- the new message, as its id, its position or its conditions.
CREATE FUNCTION idem.headers_to_forward(headers jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT jsonb_object_agg(h.name, h.value)
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

CREATE FUNCTION idem_forward(id text, destination text, topic text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.key_of(idem_forward.id),
            idem.find_destination(idem_forward.destination),
            idem.check_topic(idem_forward.topic);
    PERFORM idem.check_lease_transaction(), idem.check_has_relay();
    IF (idem.find_letter(idem_forward.id, idem_forward.destination, false)).key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN idem.forward_letter(idem_forward.id, idem_forward.destination, idem_forward.topic, true);
END
$$;
COMMENT ON FUNCTION idem_forward(text, text, text) IS
    'Sends a dead letter to a topic (1 to 255 bytes): claims its message, records the dead letter '
    'as an effect of the message, and deletes the dead letter. The effect has the payload, key, '
    'type, content type and headers of the dead letter and a new message id, so a consumer that '
    'identifies messages by the message id processes it as a new message. Returns the message id; '
    'null if there is no dead letter, or if its message was processed meanwhile (then the dead '
    'letter is deleted). Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another '
    'id has the same key), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), '
    '55000 (there is no relay), 55P03 (the message is leased).';

CREATE FUNCTION idem_forward(id uuid, destination text, topic text) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_forward(id::text, destination, topic);
COMMENT ON FUNCTION idem_forward(uuid, text, text) IS
    'Sends a dead letter to a topic (1 to 255 bytes): claims its message, records the dead letter '
    'as an effect of the message, and deletes the dead letter. The effect has the payload, key, '
    'type, content type and headers of the dead letter and a new message id, so a consumer that '
    'identifies messages by the message id processes it as a new message. Returns the message id; '
    'null if there is no dead letter, or if its message was processed meanwhile (then the dead '
    'letter is deleted). Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another '
    'id has the same key), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), '
    '55000 (there is no relay), 55P03 (the message is leased).';

CREATE FUNCTION idem_forward_all(
    destination  text,
    topic        text,
    error_like   text    DEFAULT '%',
    max_messages integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    forwarded integer := 0;
BEGIN
    PERFORM idem.check_topic(idem_forward_all.topic), idem.check_has_relay();
    FOR letter IN
        SELECT l.*
          FROM idem.some_letters(idem_forward_all.destination, error_like, max_messages) l
    LOOP
        IF idem.forward_letter(coalesce(letter.id, letter.key::text), idem_forward_all.destination,
                               idem_forward_all.topic, false) IS NOT NULL THEN
            forwarded := forwarded + 1;
        END IF;
    END LOOP;
    RETURN forwarded;
END
$$;
COMMENT ON FUNCTION idem_forward_all(text, text, text, integer) IS
    'Sends dead letters of a destination to a topic, in the order of arrival and at most '
    'max_messages (1 to 10,000): those with a last error that matches the LIKE pattern '
    'error_like. Returns their number. Skips a message that another transaction holds. See '
    'idem_forward. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 55000 (there is no relay), 55P03 (a '
    'message is leased).';
