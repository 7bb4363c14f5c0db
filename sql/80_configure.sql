-- Configuration: the retention of a destination and of a ring.

CREATE FUNCTION idem_configure(destination text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target  idem.ring;
    longest interval;
    number  integer;
BEGIN
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
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" was created after the snapshot of this transaction',
            destination
            USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem_configure(text, interval) IS
    'Sets how long the claims of a destination (1 to 255 bytes) are found at least: moves it to '
    'the ring with the shortest retention that is long enough. Claims made before the move are '
    'still found. Waits at most 2 seconds for transactions with claims, and blocks new claims '
    'until the end of its transaction, so commit at once. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction), 40001 (the destination was '
    'created after the snapshot of this transaction), 55P03 (claims ran for more than 2 seconds).';

CREATE FUNCTION idem.lock_out_claims() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
    -- This lock conflicts with the lock of every claim, and with itself, so that two transactions
    -- that create destinations are serialized.
    LOCK TABLE idem.ring IN SHARE ROW EXCLUSIVE MODE;
EXCEPTION
    WHEN lock_not_available THEN
        RAISE EXCEPTION 'transactions with claims have not ended within 2 seconds'
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Try again, or find the long transaction in pg_stat_activity. New claims '
                         'wait behind this function, so it does not wait longer.';
END
$$;
COMMENT ON FUNCTION idem.lock_out_claims() IS
    'Prevents claims of other transactions until the end of the transaction. Error: 55P03.';

CREATE FUNCTION idem_set_retention(ring text, retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    asks record;
BEGIN
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
    -- A claim is kept for up to one and a half retentions. Its effects must be kept longer, so the
    -- retention of the outbox depends on that of the claims.
    UPDATE idem.ring r
       SET retention = (SELECT max(i.retention) * 1.5 FROM idem.ring i WHERE i.name <> 'outbox'),
           scheduled_at = idem.ran()
     WHERE r.name = 'outbox';
END
$$;
COMMENT ON FUNCTION idem_set_retention(text, interval) IS
    'Sets how long a ring (short, standard or long) finds its claims at least: 100 milliseconds '
    'to 10 years. A shorter retention takes effect at the next rotation, also for existing '
    'claims. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only '
    'transaction).';
