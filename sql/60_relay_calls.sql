-- The relay's calls: next, publish (outside), ack, each a short transaction of its own.

CREATE FUNCTION idem_relay_partitions(relay text) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_partitions.relay, 0);
BEGIN
    RETURN this.partitions;
END
$$;
COMMENT ON FUNCTION idem_relay_partitions(text) IS 'How many partitions a relay has; they are numbered from 0. Errors: 22004, 42704.';

CREATE FUNCTION idem.check_lease(lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL THEN
        RAISE EXCEPTION 'lease must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF lease NOT BETWEEN '1 millisecond' AND '1 day' THEN
        RAISE EXCEPTION 'lease is %', lease
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 millisecond and 1 day.';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_lease(interval) IS 'Errors: 22004, 22023.';

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
COMMENT ON FUNCTION idem.check_max_effects(integer) IS 'Errors: 22004, 22023.';

CREATE FUNCTION idem.check_max_bytes(max_bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF max_bytes IS NULL THEN
        RAISE EXCEPTION 'max_bytes must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_bytes NOT BETWEEN 1 AND 1073741824 THEN
        RAISE EXCEPTION 'max_bytes is %', max_bytes
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 1073741824 (1 GB).';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_max_bytes(bigint) IS 'Errors: 22004, 22023.';

CREATE FUNCTION idem_relay_next(
    relay       text,
    partition   integer  DEFAULT 0,
    max_effects integer  DEFAULT 100,
    lease       interval DEFAULT '30 seconds',
    max_bytes   bigint   DEFAULT 16777216
) RETURNS TABLE (
    token              bigint,
    seq                bigint,
    message_id         uuid,
    topic              text,
    key                text,
    type               text,
    payload            bytea,
    content_type       text,
    headers            jsonb,
    traceparent        text,
    recorded_at        timestamptz,
    source_destination text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    this    idem.relay := idem.check_relay(idem_relay_next.relay, idem_relay_next.partition);
    p       idem.progress;
    before  timestamptz;
BEGIN
    PERFORM idem.check_max_effects(max_effects);
    PERFORM idem.check_max_bytes(max_bytes);
    PERFORM idem.check_lease(lease);

    -- Locking a row draws a transaction id and writes to the log: not for a look that finds nothing.
    IF NOT idem.has_work(this, partition) THEN
        RETURN;
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    LOOP
        p := idem.progress_of(this, partition);
        before := clock_timestamp();
        IF p.leased_until > before THEN
            RETURN;  -- somebody is at it
        END IF;
        PERFORM idem.check_xids(p);

        -- What was put aside and is due goes first.
        IF EXISTS (SELECT 1 FROM idem.delayed d WHERE d.relay = this.id AND d.partition = idem_relay_next.partition AND d.due_at <= before) THEN
            p := idem.lease_delayed(this, p, before, lease, max_effects, max_bytes);
            RETURN QUERY
                SELECT p.pos, d.seq, (d.effect).message_id, (d.effect).topic, (d.effect).key, (d.effect).type, (d.effect).payload,
                       (d.effect).content_type, (d.effect).headers, (d.effect).traceparent, (d.effect).recorded_at, x.name
                  FROM idem.delayed d
                  LEFT JOIN idem.destination x ON x.id = (d.effect).source_destination
                 WHERE d.relay = this.id AND d.partition = p.partition AND d.token = p.pos
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k WHERE k.relay = this.id AND k.seq = d.seq)
                 ORDER BY d.due_at, d.seq;
        ELSE
            p := idem.lease_batch(this, p, before, lease, max_effects, max_bytes);
            IF p IS NULL THEN
                RETURN;
            END IF;
            RETURN QUERY
                SELECT p.pos, e.seq, e.message_id, e.topic, e.key, e.type, e.payload,
                       e.content_type, e.headers, e.traceparent, e.recorded_at, x.name
                  FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, max_effects) e
                  LEFT JOIN idem.destination x ON x.id = e.source_destination
                 WHERE e.seq <= p.seq_through
                   AND (e.deliver_after IS NULL OR e.deliver_after <= before)
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k WHERE k.relay = this.id AND k.seq = e.seq)
                 ORDER BY e.seq;
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        -- All of it waits for its time or is parked: nothing to publish, so nothing to wait for.
        PERFORM idem.settle(this, partition, p.pos);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_relay_next(text, integer, integer, interval, bigint) IS 'Leases the next effects of a partition, in order: at most max_effects (1 to 10,000) whose payloads and headers have at most max_bytes (1 to 1 GB), and at least one; token fences the lease. No row: nothing to do, or another process holds the lease. After the lease has run out the same effects come again. Errors: 22004, 22023, 42704, 25000 (not READ COMMITTED), 25006, 55000 (transaction ids went backwards).';

CREATE FUNCTION idem.held_batch(this idem.relay, partition integer, token bigint) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p idem.progress := idem.progress_of(this, partition);
BEGIN
    IF token IS NULL THEN
        RAISE EXCEPTION 'token must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF p.pos <> token OR p.leased_until IS NULL THEN
        RAISE EXCEPTION 'token % does not hold partition % of relay "%"', token, partition, this.name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'The lease expired and another process acquired it, or the batch is acknowledged: take the next with idem_relay_next.';
    END IF;
    -- A lease that a dump brought along must not make a cursor of another cluster look like one of this.
    PERFORM idem.check_xids(p);
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_batch(idem.relay, integer, bigint) IS 'The progress whose batch this token holds. Errors: 22004, 55000.';

-- The cursor moves behind the batch that is out; what waits for its time is put aside.
CREATE FUNCTION idem.settle(this idem.relay, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress := idem.held_batch(this, partition, token);
BEGIN
    IF p.from_delayed THEN
        DELETE FROM idem.delayed d WHERE d.relay = this.id AND d.partition = settle.partition AND d.token = settle.token;
        p.from_delayed := false;
    ELSE
        IF p.deferring THEN
            INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
            SELECT this.id, settle.partition, e.deliver_after, e, e.seq
              FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, 10000) e
             WHERE e.seq <= p.seq_through
               AND e.deliver_after > p.written_at
               AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k WHERE k.relay = this.id AND k.seq = e.seq);
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
    p.written_at := clock_timestamp();
    PERFORM idem.append_progress(p);
END
$$;
COMMENT ON FUNCTION idem.settle(idem.relay, integer, bigint) IS 'Moves the cursor behind the batch that a token holds.';

CREATE FUNCTION idem_relay_ack(relay text, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_ack.relay, idem_relay_ack.partition);
BEGIN
    PERFORM idem.lock_partition(this.id, partition);
    PERFORM idem.settle(this, partition, token);
END
$$;
COMMENT ON FUNCTION idem_relay_ack(text, integer, bigint) IS 'The batch that this token holds is published: the cursor moves behind it. Errors: 22004, 22023, 42704, 25000, 55000 (stale token).';

CREATE FUNCTION idem_relay_extend(relay text, partition integer, token bigint, lease interval DEFAULT '30 seconds') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_extend.relay, idem_relay_extend.partition);
    p    idem.progress;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.lock_partition(this.id, partition);
    p := idem.held_batch(this, partition, token);
    -- Its written_at stays: which effects of the batch are due was decided then.
    p.leased_until := clock_timestamp() + lease;
    p.pos := idem.append_progress(p);
    IF p.from_delayed THEN
        UPDATE idem.delayed d SET token = p.pos
         WHERE d.relay = this.id AND d.partition = idem_relay_extend.partition AND d.token = idem_relay_extend.token;
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem_relay_extend(text, integer, bigint, interval) IS 'The batch that this token holds is leased for so long from now on, under the new token that it answers; with 1 millisecond it is given back, and comes again at once. Errors: 22004, 22023, 42704, 25000, 25006, 55000 (stale token).';
