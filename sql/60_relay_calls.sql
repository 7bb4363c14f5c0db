-- The functions of a relay: it leases a batch, publishes the batch outside the database, and
-- acknowledges it. Each function is a short transaction of its own.

CREATE FUNCTION idem_relay_partitions(relay text) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_partitions.relay, 0);
BEGIN
    RETURN this.partitions;
END
$$;
COMMENT ON FUNCTION idem_relay_partitions(text) IS
    'Returns the number of partitions of a relay. The partitions are numbered from 0. Errors: '
    '22004 (null argument), 42704 (no such relay).';

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
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
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

    -- Check for effects before locking the row of the partition, because a row lock assigns a
    -- transaction id and writes WAL.
    IF NOT idem.has_work(this, partition) THEN
        RETURN;
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    LOOP
        p := idem.progress_of(this, partition);
        before := clock_timestamp();
        IF p.leased_until > before THEN
            RETURN;  -- another process holds the lease
        END IF;
        PERFORM idem.check_xids(p);

        -- Delayed effects that are due are delivered first.
        IF EXISTS (SELECT 1 FROM idem.delayed d
                    WHERE d.relay = this.id AND d.partition = idem_relay_next.partition
                      AND d.due_at <= before) THEN
            p := idem.lease_delayed(this, p, before, lease, max_effects, max_bytes);
            RETURN QUERY
                SELECT p.pos, d.seq, (d.effect).message_id, (d.effect).topic, (d.effect).key,
                       (d.effect).type, (d.effect).payload, (d.effect).content_type,
                       (d.effect).headers, (d.effect).traceparent, (d.effect).recorded_at, x.name
                  FROM idem.delayed d
                  LEFT JOIN idem.destination x ON x.id = (d.effect).source_destination
                 WHERE d.relay = this.id AND d.partition = p.partition AND d.token = p.pos
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                    WHERE k.relay = this.id AND k.seq = d.seq)
                 ORDER BY d.due_at, d.seq;
        ELSE
            p := idem.lease_batch(this, p, before, lease, max_effects, max_bytes);
            IF p IS NULL THEN
                RETURN;
            END IF;
            RETURN QUERY
                SELECT p.pos, e.seq, e.message_id, e.topic, e.key, e.type, e.payload,
                       e.content_type, e.headers, e.traceparent, e.recorded_at, x.name
                  FROM idem.effects_between(
                       p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                       pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                       this.partitions, p.partition, max_effects) e
                  LEFT JOIN idem.destination x ON x.id = e.source_destination
                 WHERE e.seq <= p.seq_through
                   AND (e.deliver_after IS NULL OR e.deliver_after <= before)
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                    WHERE k.relay = this.id AND k.seq = e.seq)
                 ORDER BY e.seq;
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        -- All effects of the batch are delayed or parked. There is nothing to publish, so settle
        -- the batch now.
        PERFORM idem.settle(this, partition, p.pos);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_relay_next(text, integer, integer, interval, bigint) IS
    'Leases the next effects of a partition and returns them in order. The batch has at most '
    'max_effects effects (1 to 10,000) and at most max_bytes bytes of payloads and headers (1 to '
    '1 GB), but always at least one effect. lease: 1 millisecond to 1 day. token proves the lease '
    'to the other functions. Returns no row if there are no effects or another process holds the '
    'lease. After the lease has expired the same effects are returned again. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), '
    '25006 (standby or read-only transaction), 55000 (transaction ids went backwards).';

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
    -- A lease from a dump must not make a cursor of another cluster valid in this cluster.
    PERFORM idem.check_xids(p);
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_batch(idem.relay, integer, bigint) IS
    'Returns the progress of the batch that the token leases. Errors: 22004, 55000 (stale token, '
    'or transaction ids went backwards).';

-- Moves the cursor behind the leased batch. Effects that are not due yet are moved to idem.delayed.
CREATE FUNCTION idem.settle(this idem.relay, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress := idem.held_batch(this, partition, token);
BEGIN
    IF p.from_delayed THEN
        DELETE FROM idem.delayed d
         WHERE d.relay = this.id AND d.partition = settle.partition AND d.token = settle.token;
        p.from_delayed := false;
    ELSE
        IF p.deferring THEN
            INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
            SELECT this.id, settle.partition, e.deliver_after, e, e.seq
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
    p.written_at := clock_timestamp();
    PERFORM idem.append_progress(p);
END
$$;
COMMENT ON FUNCTION idem.settle(idem.relay, integer, bigint) IS
    'Moves the cursor behind the batch that the token leases.';

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
COMMENT ON FUNCTION idem_relay_ack(text, integer, bigint) IS
    'Acknowledges the batch that the token leases, after its effects are published. The cursor '
    'moves behind the batch. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no '
    'such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 '
    '(stale token).';

CREATE FUNCTION idem_relay_extend(
    relay     text,
    partition integer,
    token     bigint,
    lease     interval DEFAULT '30 seconds'
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_extend.relay, idem_relay_extend.partition);
    p    idem.progress;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.lock_partition(this.id, partition);
    p := idem.held_batch(this, partition, token);
    -- written_at does not change, because it is the time that decided which effects of the batch
    -- are due.
    p.leased_until := clock_timestamp() + lease;
    p.pos := idem.append_progress(p);
    IF p.from_delayed THEN
        UPDATE idem.delayed d SET token = p.pos
         WHERE d.relay = this.id AND d.partition = idem_relay_extend.partition
           AND d.token = idem_relay_extend.token;
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem_relay_extend(text, integer, bigint, interval) IS
    'Extends the lease of a batch: it ends after the interval lease (1 millisecond to 1 day) from '
    'now. Returns the new token; the old one is no longer valid. With 1 millisecond the batch is '
    'released and returned again at once. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (stale token).';
