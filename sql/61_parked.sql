-- What is set aside: one effect of a batch with its reason, so that the others of its partition go on.

CREATE FUNCTION idem.park(this idem.relay, p idem.progress, message_id uuid, seq bigint, error text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    IF p.from_delayed THEN
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, d.effect, d.seq
          FROM idem.delayed d
         WHERE d.relay = p.relay AND d.partition = p.partition AND d.token = p.pos
           AND (d.effect).message_id = coalesce(park.message_id, (d.effect).message_id) AND d.seq = coalesce(park.seq, d.seq)
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO idem.parked_effect (relay, partition, error, effect, seq)
        SELECT p.relay, p.partition, park.error, e, e.seq
          FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, 10000) e
         WHERE e.seq <= p.seq_through
           AND e.message_id = coalesce(park.message_id, e.message_id) AND e.seq = coalesce(park.seq, e.seq)
           AND (e.deliver_after IS NULL OR e.deliver_after <= p.written_at)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem.park(idem.relay, idem.progress, uuid, bigint, text) IS 'Parks effects of the batch that is out: those with this message id, or the one with this seq. False: there is none, or it is parked already.';

CREATE FUNCTION idem_relay_park(relay text, partition integer, token bigint, message_id uuid, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_park.relay, idem_relay_park.partition);
BEGIN
    IF message_id IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'message_id and error must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(error) > 8192 THEN
        RAISE EXCEPTION 'error has % bytes', octet_length(error)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'At most 8192 bytes are kept: shorten it.';
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    IF NOT idem.park(this, idem.held_batch(this, partition, token), message_id, NULL, error)
       AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_park.message_id) THEN
        RAISE EXCEPTION 'message % is not in the batch that token % holds', message_id, token
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Park effects between idem_relay_next and idem_relay_ack.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem_relay_park(text, integer, bigint, uuid, text) IS 'Sets one effect of the batch aside with its reason, so that the others go on; see idem.parked and idem_relay_unpark. Errors: 22004, 22023, 42704, 25000, 55000.';

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
COMMENT ON FUNCTION idem_relay_unpark(text, uuid) IS 'Gives a parked effect back to its relay, which delivers it next; false when none is parked. Errors: 22004, 42704, 25006.';

CREATE FUNCTION idem.take_parked(relay text, error_like text, max_effects integer) RETURNS SETOF idem.parked_effect
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
COMMENT ON FUNCTION idem.take_parked(text, text, integer) IS 'Deletes the oldest parked effects of a relay whose error is like the pattern, and returns them. Errors: 22004, 22023, 42704, 25006.';

CREATE FUNCTION idem_relay_unpark_all(relay text, error_like text DEFAULT '%', max_effects integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- One moment for all: they are due in the order of their seq.
    here     timestamptz := clock_timestamp();
    unparked integer;
BEGIN
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT k.relay, k.partition, here, k.effect, k.seq FROM idem.take_parked(idem_relay_unpark_all.relay, error_like, max_effects) k;
    GET DIAGNOSTICS unparked = ROW_COUNT;
    RETURN unparked;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark_all(text, text, integer) IS 'Gives parked effects back to their relay, which delivers them next: the oldest, at most max_effects (1 to 10,000), whose error is like the pattern. Returns how many. Errors: 22004, 22023, 42704, 25006.';

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
COMMENT ON FUNCTION idem_relay_discard(text, uuid) IS 'Deletes a parked effect: this relay never delivers it. False: none is parked under this id. An effect whose batch is not acknowledged yet can come again. Errors: 22004, 42704, 25006.';

CREATE FUNCTION idem_relay_discard_all(relay text, error_like text DEFAULT '%', max_effects integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT count(*) FROM idem.take_parked(idem_relay_discard_all.relay, error_like, max_effects));
END
$$;
COMMENT ON FUNCTION idem_relay_discard_all(text, text, integer) IS 'Deletes parked effects of a relay: the oldest, at most max_effects (1 to 10,000), whose error is like the pattern. Returns how many. Errors: 22004, 22023, 42704, 25006.';
