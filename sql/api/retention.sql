-- The retention of a destination and of a ring.

CREATE FUNCTION idem_configure(destination text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target  idem.ring;
    longest interval;
    number  integer;
BEGIN
    PERFORM idem.check_transaction('idem_configure()');
    IF destination IS NULL OR retention IS NULL THEN
        RAISE EXCEPTION 'destination and retention must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(destination) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the destination has % bytes', octet_length(destination)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    ELSIF retention <= '0' THEN
        RAISE EXCEPTION 'retention is %', retention
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be positive.';
    END IF;

    -- This lock conflicts with the lock of every claim, so no claim runs during the change.
    PERFORM idem.lock_out_claims();
    SELECT r.* INTO target FROM idem.ring r
     WHERE r.name <> 'outbox' AND r.retention >= idem_configure.retention
     ORDER BY r.retention, r.id LIMIT 1;
    IF NOT FOUND THEN
        SELECT max(r.retention) INTO longest FROM idem.ring r WHERE r.name <> 'outbox';
        RAISE EXCEPTION 'no ring keeps claims for %', idem_configure.retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('The longest retention of a ring is %s: change it with '
                                'idem_set_retention.', longest);
    END IF;
    number := idem.intern_destination(idem_configure.destination);
    UPDATE idem.destination AS d
       SET ring = target.id,
           retention = idem_configure.retention,
           left_short    = CASE WHEN target.id = 0 THEN NULL
                                WHEN d.ring = 0 THEN idem.ran()
                                ELSE d.left_short END,
           left_standard = CASE WHEN target.id = 1 THEN NULL
                                WHEN d.ring = 1 THEN idem.ran()
                                ELSE d.left_standard END,
           left_long     = CASE WHEN target.id = 2 THEN NULL
                                WHEN d.ring = 2 THEN idem.ran()
                                ELSE d.left_long END
     WHERE d.id = number;
END
$$;
COMMENT ON FUNCTION idem_configure(text, interval) IS
    'Sets how long the claims of a destination (1 to 255 bytes) are found at least: moves it to '
    'the ring with the shortest retention that is long enough. Claims made before the move are '
    'still found. Waits at most 2 seconds for transactions with claims, and blocks new claims '
    'until the end of its transaction, so commit at once. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), '
    '55P03 (claims ran for more than 2 seconds).';

CREATE FUNCTION idem_set_retention(ring text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    asks record;
BEGIN
    PERFORM idem.check_transaction('idem_set_retention()');
    IF ring IS NULL OR retention IS NULL THEN
        RAISE EXCEPTION 'ring and retention must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF ring NOT IN ('short', 'standard', 'long') THEN
        RAISE EXCEPTION 'there is no ring "%"', ring
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The rings are short, standard and long.';
    ELSIF retention NOT BETWEEN '100 milliseconds' AND '10 years' THEN
        RAISE EXCEPTION 'retention is %', retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 100 milliseconds and 10 years.';
    END IF;
    LOCK TABLE idem.ring IN SHARE UPDATE EXCLUSIVE MODE;
    UPDATE idem.ring r
       SET retention = idem_set_retention.retention, scheduled_at = idem.ran()
     WHERE r.name = idem_set_retention.ring;
    IF (SELECT max(r.retention) FILTER (WHERE r.name = 'short')
                   > min(r.retention) FILTER (WHERE r.name = 'standard')
            OR max(r.retention) FILTER (WHERE r.name = 'standard')
                   > min(r.retention) FILTER (WHERE r.name = 'long')
          FROM idem.ring r) THEN
        RAISE EXCEPTION 'the retentions of the rings would be out of order'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The retention of short must not exceed that of standard, and that of '
                         'standard must not exceed that of long: change the rings in an order that '
                         'keeps this true.';
    END IF;
    SELECT d.name, d.retention INTO asks FROM idem.destination d JOIN idem.ring r ON r.id = d.ring
     WHERE d.retention > r.retention ORDER BY d.retention DESC LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'destination "%" needs a retention of %', asks.name, asks.retention
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Change its retention first with idem_configure.';
    END IF;
    -- A claim is kept for up to 1.17 retentions. Its effects must be kept longer, so the retention
    -- of the outbox depends on that of the claims.
    UPDATE idem.ring r
       SET retention = (SELECT max(i.retention) * 1.5 FROM idem.ring i WHERE i.name <> 'outbox'),
           scheduled_at = idem.ran()
     WHERE r.name = 'outbox';
END
$$;
COMMENT ON FUNCTION idem_set_retention(text, interval) IS
    'Sets how long a ring (short, standard or long) finds its claims at least: 100 milliseconds '
    'to 10 years. A shorter retention takes effect at the next rotation, also for existing '
    'claims. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), '
    '25006 (standby or read-only transaction).';

CREATE FUNCTION idem_set_message_identity(identity text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    used text;
BEGIN
    IF identity IS NULL THEN
        RAISE EXCEPTION 'identity must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF identity NOT IN ('id_and_destination', 'id') THEN
        RAISE EXCEPTION 'there is no message identity "%"', identity
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be id_and_destination or id.';
    END IF;
    PERFORM idem.check_transaction('idem_set_message_identity()');
    PERFORM idem.lock_out_claims();
    IF identity <> (SELECT i.message_identity FROM idem.installation i WHERE i.id = 1) THEN
        used := idem.table_with_messages();
    END IF;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'the message identity cannot change while messages are known'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('%s has rows. With another identity they would not be found, and '
                                  'their messages would be processed again.', used),
                  HINT = 'Set it before the first message.';
    END IF;
    UPDATE idem.installation i SET message_identity = identity WHERE i.id = 1;
END
$$;
COMMENT ON FUNCTION idem_set_message_identity(text) IS
    'Sets what makes two messages of this database the same: id_and_destination (the default), or '
    'id. With id, the first claim of an id counts for all destinations, and the retention is that '
    'of the destination "*". Blocks new claims until the end of its transaction, so commit at '
    'once. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), '
    '25006 (standby or read-only transaction), 55000 (there are claims, external calls, messages '
    'or dead letters), 55P03 (claims ran for more than 2 seconds).';

CREATE FUNCTION idem_remove_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    used   text;
BEGIN
    PERFORM idem.check_transaction('idem_remove_destination()');
    IF name IS NULL THEN
        RAISE EXCEPTION 'name must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the destination has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    END IF;
    SELECT d.id INTO number FROM idem.destination d WHERE d.name = idem_remove_destination.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Check without the lock first, so that claims do not have to wait if the destination is in
    -- use.
    used := idem.use_of_destination(number);
    IF used IS NULL THEN
        PERFORM idem.lock_out_claims();
        used := idem.use_of_destination(number);
    END IF;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'destination "%" is in use', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('A row of %s refers to it.', used),
                  HINT = 'Wait until its claims and effects are forgotten; process or discard its '
                         'messages.';
    END IF;
    DELETE FROM idem.retry_policy p WHERE p.destination = number;
    DELETE FROM idem.destination d WHERE d.id = number;
    PERFORM idem.invalidate('idem.destination'::regclass);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_remove_destination(text) IS
    'Removes a destination and its retry policy. No claim, external call, effect, message or dead '
    'letter may refer to it. Returns false if there is no such destination. Blocks claims while '
    'it reads all slices. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the destination is in '
    'use), 55P03 (claims ran for more than 2 seconds).';
