-- The way of a dead letter back to a broker: the letter becomes an effect of its message.

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
COMMENT ON FUNCTION idem.check_topic(text) IS 'Checks the topic of an effect. Errors: 22004, 22023.';

-- A consumer would take the message for a duplicate by its old id, and RabbitMQ writes its own x- headers anew.
CREATE FUNCTION idem.headers_to_forward(headers jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT jsonb_object_agg(h.name, h.value)
          FROM jsonb_each(headers) AS h(name, value)
         WHERE h.name NOT IN ('message-id', 'Nats-Msg-Id', 'idem-source-topic', 'idem-dead-letter-reason', 'x-acquired-count', 'x-delivery-count', 'x-death')
           AND h.name NOT LIKE 'x-first-death-%' AND h.name NOT LIKE 'x-last-death-%');
COMMENT ON FUNCTION idem.headers_to_forward(jsonb) IS 'The headers of a dead letter without those that describe its former delivery.';

CREATE FUNCTION idem.forward_letter(id text, destination text, topic text, wait boolean) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter idem.dead_letter := idem.take_letter(forward_letter.id, forward_letter.destination, forward_letter.wait);
BEGIN
    IF letter.key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN idem.record_letter(forward_letter.id, forward_letter.destination, forward_letter.topic, letter.payload, letter.order_key, letter.type,
                              idem.headers_to_forward(letter.headers), letter.traceparent, letter.content_type);
END
$$;
COMMENT ON FUNCTION idem.forward_letter(text, text, text, boolean) IS 'Claims the message of a dead letter, records the letter as its effect and deletes it. Returns the id of the effect. Null: there is no letter any longer, or another transaction holds the message and wait is false.';

CREATE FUNCTION idem_forward(id text, destination text, topic text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.key_of(idem_forward.id), idem.find_destination(idem_forward.destination), idem.check_topic(idem_forward.topic);
    PERFORM idem.check_lease_transaction();
    IF (idem.find_letter(idem_forward.id, idem_forward.destination, false)).key IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN idem.forward_letter(idem_forward.id, idem_forward.destination, idem_forward.topic, true);
END
$$;
COMMENT ON FUNCTION idem_forward(text, text, text) IS 'Sends a dead letter to a topic: claims its message, records the letter as an effect of it and deletes the letter. The effect has payload, key, type, content type and headers of the letter, and a message id of its own, which is returned; consumers process it as a new message. Null: there is no such letter. Errors: 22004, 22023, 23000, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_forward(id uuid, destination text, topic text) RETURNS uuid
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_forward(id::text, destination, topic);
COMMENT ON FUNCTION idem_forward(uuid, text, text) IS 'Sends a dead letter to a topic: claims its message, records the letter as an effect of it and deletes the letter. The effect has payload, key, type, content type and headers of the letter, and a message id of its own, which is returned; consumers process it as a new message. Null: there is no such letter. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';

CREATE FUNCTION idem_forward_all(destination text, topic text, error_like text DEFAULT '%', max_messages integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    letter    idem.dead_letter;
    forwarded integer := 0;
BEGIN
    PERFORM idem.check_topic(idem_forward_all.topic);
    FOR letter IN SELECT l.* FROM idem.some_letters(idem_forward_all.destination, error_like, max_messages) l LOOP
        IF idem.forward_letter(coalesce(letter.id, letter.key::text), idem_forward_all.destination, idem_forward_all.topic, false) IS NOT NULL THEN
            forwarded := forwarded + 1;
        END IF;
    END LOOP;
    RETURN forwarded;
END
$$;
COMMENT ON FUNCTION idem_forward_all(text, text, text, integer) IS 'Sends dead letters of a destination to a topic, at most max_messages, in the order of arrival: those whose last error matches the pattern. See idem_forward. Returns how many. It skips a message that another transaction holds. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';
