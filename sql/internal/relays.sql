-- What the functions of relays have in common: checks, the batch that is leased, parked effects.

CREATE FUNCTION idem.check_lease(lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL THEN
        RAISE EXCEPTION 'lease must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF lease NOT BETWEEN '1 millisecond' AND '1 day' THEN
        RAISE EXCEPTION 'lease is %', lease
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 1 millisecond and 1 day.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_lease(interval) IS
    'Checks the length of a lease. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_max_effects(max_effects integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_effects IS NULL THEN
        RAISE EXCEPTION 'max_effects must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_effects NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_effects is %', max_effects
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_max_effects(integer) IS
    'Checks the argument max_effects. Errors: 22004, 22023.';

CREATE FUNCTION idem.check_max_bytes(max_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_bytes IS NULL THEN
        RAISE EXCEPTION 'max_bytes must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_bytes NOT BETWEEN 1 AND 1073741824 THEN
        RAISE EXCEPTION 'max_bytes is %', max_bytes
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It must be between 1 and 1073741824 (1 GB).';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_max_bytes(bigint) IS
    'Checks the argument max_bytes. Errors: 22004, 22023.';

CREATE FUNCTION idem.held_batch(
    this      idem.relay,
    partition integer,
    token     bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p idem.progress := idem.progress_of(this, partition);
BEGIN
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF p.pos <> token OR p.leased_until IS NULL THEN
        RAISE EXCEPTION 'lease token % is no longer valid for partition % of relay "%"',
            token, partition, this.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease expired and another process acquired it, or the batch was '
                         'acknowledged. Lease the next batch with idem_relay_next.';
    END IF;
    -- A restored dump can contain a lease whose cursor has transaction ids of another cluster, so
    -- check the ids.
    PERFORM idem.check_xids(p);
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_batch(idem.relay, integer, bigint) IS
    'Returns the progress of the batch that the token leases. Errors: 22004, 55000 (stale token, '
    'or transaction ids went backwards).';

-- Moves the cursor past the leased batch. Effects that are not due yet are moved to idem.delayed.
CREATE FUNCTION idem.finish_batch(this idem.relay, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress := idem.held_batch(this, partition, token);
BEGIN
    IF p.from_delayed THEN
        DELETE FROM idem.delayed d
         WHERE d.relay = this.id AND d.partition = finish_batch.partition
           AND d.token = finish_batch.token;
        p.from_delayed := false;
    ELSE
        IF p.deferring THEN
            INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
            SELECT this.id, finish_batch.partition, e.deliver_after, e, e.seq
              FROM idem.effects_between(
                   p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                   pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                   this.partitions, p.partition, 10000) e
             WHERE e.seq <= p.seq_through
               AND e.deliver_after > p.written_at
               AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                WHERE k.relay = this.id AND k.seq = e.seq);
            p.deferring := false;
        END IF;
        IF p.exhausted THEN
            p := idem.close_pair(p);
            p.exhausted := false;
        ELSE
            p.seq_after := p.seq_through;
        END IF;
    END IF;
    p.leased_until := NULL;
    p.seq_through := NULL;
    p.waits_for := NULL;
    p.written_at := clock_timestamp();
    PERFORM idem.append_progress(p);
END
$$;
COMMENT ON FUNCTION idem.finish_batch(idem.relay, integer, bigint) IS
    'Moves the cursor past the batch that the token leases.';

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

CREATE FUNCTION idem.park_too_large(this idem.relay, p idem.progress) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    large record;
BEGIN
    FOR large IN
        SELECT e.seq, octet_length(e.payload)::bigint AS bytes
          FROM idem.effects_between(
               p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
               pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
               this.partitions, p.partition, 10000) e
         WHERE NOT p.from_delayed AND e.seq <= p.seq_through
           AND octet_length(e.payload) > idem.largest_payload()
        UNION ALL
        SELECT d.seq, octet_length((d.effect).payload)::bigint
          FROM idem.delayed d
         WHERE p.from_delayed AND d.relay = p.relay AND d.partition = p.partition
           AND d.token = p.pos AND octet_length((d.effect).payload) > idem.largest_payload()
    LOOP
        PERFORM idem.park(this, p, NULL, large.seq, idem.too_large(large.bytes));
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.park_too_large(idem.relay, idem.progress) IS
    'Parks the effects of the leased batch that are too large to be returned.';

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
    PERFORM idem.check_transaction('a function of parked effects');
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
    'matches the LIKE pattern, and returns them. Errors: 22004, 22023, 25000, 25006, 42704.';

CREATE FUNCTION idem.with_trace(headers jsonb, traceparent text) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN traceparent IS NULL THEN headers
            ELSE coalesce(headers, '{}')
                 OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('traceparent', traceparent)
       END;
COMMENT ON FUNCTION idem.with_trace(jsonb, text) IS
    'Returns the headers with the trace context added, from which the receiving functions read it.';
