-- Parked effects: a relay parks one effect of a batch with its error, so that the other effects of
-- the partition are delivered.

CREATE FUNCTION idem.park(
    this       idem.relay,
    p          idem.progress,
    message_id uuid,
    seq        bigint,
    error      text
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF p.from_delayed THEN
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, d.effect, d.seq
          FROM idem.delayed d
         WHERE d.relay = p.relay AND d.partition = p.partition AND d.token = p.pos
           AND (d.effect).message_id = coalesce(park.message_id, (d.effect).message_id)
           AND d.seq = coalesce(park.seq, d.seq)
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, e, e.seq
          FROM idem.effects_between(
               p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
               pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
               this.partitions, p.partition, 10000) e
         WHERE e.seq <= p.seq_through
           AND e.message_id = coalesce(park.message_id, e.message_id)
           AND e.seq = coalesce(park.seq, e.seq)
           AND (e.deliver_after IS NULL OR e.deliver_after <= p.written_at)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem.park(idem.relay, idem.progress, uuid, bigint, text) IS
    'Parks effects of the leased batch: those with this message id, or the one with this seq. '
    'Returns false if the batch has no such effect, or it is parked already.';

CREATE FUNCTION idem_relay_park(
    relay      text,
    partition  integer,
    token      bigint,
    message_id uuid,
    error      text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_park.relay, idem_relay_park.partition);
BEGIN
    IF message_id IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'message_id and error must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(error) > 8192 THEN
        RAISE EXCEPTION 'error has % bytes', octet_length(error)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must have at most 8192 bytes: truncate it.';
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    IF NOT idem.park(this, idem.held_batch(this, partition, token), message_id, NULL, error)
       AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                        WHERE k.relay = this.id
                          AND (k.effect).message_id = idem_relay_park.message_id) THEN
        RAISE EXCEPTION 'message % is not in the batch that token % leases', message_id, token
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Park effects between idem_relay_next and idem_relay_ack.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem_relay_park(text, integer, bigint, uuid, text) IS
    'Parks one effect of the leased batch: stores it with its error (at most 8,192 bytes), so '
    'that the other effects of the partition are delivered. See the view idem.parked, '
    'idem_relay_unpark and idem_relay_discard. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (stale token).';

CREATE FUNCTION idem_relay_unpark(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_unpark.relay, 0);
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    WITH back AS (
        DELETE FROM idem.parked_effect k
         WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_unpark.message_id
        RETURNING k.*
    )
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT b.relay, b.partition, clock_timestamp(), b.effect, b.seq FROM back b;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark(text, uuid) IS
    'Unparks an effect, so that its relay delivers it next. Returns false if no effect with this '
    'message id is parked. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby '
    'or read-only transaction).';

CREATE FUNCTION idem.take_parked(
    relay       text,
    error_like  text,
    max_effects integer
) RETURNS SETOF idem.parked_effect
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    this idem.relay := idem.check_relay(take_parked.relay, 0);
BEGIN
    PERFORM idem.check_error_like(error_like, 'error_like');
    PERFORM idem.check_max_effects(max_effects);
    RETURN QUERY
        DELETE FROM idem.parked_effect k
         USING (SELECT x.seq FROM idem.parked_effect x
                 WHERE x.relay = this.id AND x.error LIKE error_like
                 ORDER BY x.seq LIMIT max_effects FOR UPDATE SKIP LOCKED) taken
         WHERE k.relay = this.id AND k.seq = taken.seq
        RETURNING k.*;
END
$$;
COMMENT ON FUNCTION idem.take_parked(text, text, integer) IS
    'Deletes the oldest parked effects of a relay, at most max_effects, with an error that '
    'matches the LIKE pattern, and returns them. Errors: 22004, 22023, 42704, 25006.';

CREATE FUNCTION idem_relay_unpark_all(
    relay       text,
    error_like  text    DEFAULT '%',
    max_effects integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- All effects get the same due_at, so that they are delivered in the order of their seq.
    here     timestamptz := clock_timestamp();
    unparked integer;
BEGIN
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT k.relay, k.partition, here, k.effect, k.seq
      FROM idem.take_parked(idem_relay_unpark_all.relay, error_like, max_effects) k;
    GET DIAGNOSTICS unparked = ROW_COUNT;
    RETURN unparked;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark_all(text, text, integer) IS
    'Unparks effects, so that their relay delivers them next: the oldest ones, at most '
    'max_effects (1 to 10,000), with an error that matches the LIKE pattern error_like. Returns '
    'their number. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no such '
    'relay), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_relay_discard(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_discard.relay, 0);
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    DELETE FROM idem.parked_effect k
     WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_discard.message_id;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_relay_discard(text, uuid) IS
    'Deletes a parked effect, so that this relay never delivers it. Returns false if no effect '
    'with this message id is parked. An effect of a batch that is not acknowledged yet can be '
    'delivered again. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_relay_discard_all(
    relay       text,
    error_like  text    DEFAULT '%',
    max_effects integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*)
              FROM idem.take_parked(idem_relay_discard_all.relay, error_like, max_effects));
END
$$;
COMMENT ON FUNCTION idem_relay_discard_all(text, text, integer) IS
    'Deletes parked effects of a relay: the oldest ones, at most max_effects (1 to 10,000), with '
    'an error that matches the LIKE pattern error_like. Returns their number. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25006 (standby or read-only '
    'transaction).';
