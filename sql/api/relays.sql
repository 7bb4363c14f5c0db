-- The functions of a relay. A relay leases a batch, publishes the batch outside the database, and
-- acknowledges it. Call each function in a short transaction of its own.

CREATE FUNCTION idem_relay_wait(timeout_ms integer DEFAULT 1000) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_relay_wait_wrapper';
COMMENT ON FUNCTION idem_relay_wait(integer) IS
    'Waits at most timeout_ms milliseconds for effects that this session has not waited for '
    'before. Returns true if there may be such effects. A relay calls this function when '
    'idem_relay_next has returned no row. Errors: 22004 (null argument), 22023 (invalid argument).';

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
    this      idem.relay := idem.check_relay(idem_relay_next.relay, idem_relay_next.partition);
    p         idem.progress;
    chosen_at timestamptz;
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
        chosen_at := clock_timestamp();
        IF p.leased_until > chosen_at THEN
            RETURN;  -- another process holds the lease
        END IF;
        PERFORM idem.check_xids(p);

        -- Delayed effects that are due are delivered first.
        IF EXISTS (SELECT 1 FROM idem.delayed d
                    WHERE d.relay = this.id AND d.partition = idem_relay_next.partition
                      AND d.due_at <= chosen_at) THEN
            p := idem.lease_delayed(this, p, chosen_at, lease, max_effects, max_bytes);
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
            p := idem.lease_batch(this, p, chosen_at, lease, max_effects, max_bytes);
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
                   AND (e.deliver_after IS NULL OR e.deliver_after <= chosen_at)
                   AND NOT EXISTS (SELECT 1 FROM idem.parked_effect k
                                    WHERE k.relay = this.id AND k.seq = e.seq)
                 ORDER BY e.seq;
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
        -- All effects of the batch are delayed or parked. There is nothing to publish, so finish
        -- the batch now.
        PERFORM idem.finish_batch(this, partition, p.pos);
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
    '25006 (standby or read-only transaction), 55000 (transaction ids went backwards), 58000 '
    '(a sequence went backwards).';

CREATE FUNCTION idem_relay_ack(relay text, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_ack.relay, idem_relay_ack.partition);
BEGIN
    PERFORM idem.lock_partition(this.id, partition);
    PERFORM idem.finish_batch(this, partition, token);
END
$$;
COMMENT ON FUNCTION idem_relay_ack(text, integer, bigint) IS
    'Acknowledges the batch that the token leases, after its effects are published. The cursor '
    'moves past the batch. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no '
    'such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 '
    '(stale token, or transaction ids went backwards).';

CREATE FUNCTION idem_relay_extend(
    relay     text,
    partition integer,
    token     bigint,
    lease     interval DEFAULT '30 seconds',
    waits_for text     DEFAULT NULL
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
    p.waits_for := idem.truncated_error(idem_relay_extend.waits_for);
    p.pos := idem.append_progress(p);
    IF p.from_delayed THEN
        UPDATE idem.delayed d SET token = p.pos
         WHERE d.relay = this.id AND d.partition = idem_relay_extend.partition
           AND d.token = idem_relay_extend.token;
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem_relay_extend(text, integer, bigint, interval, text) IS
    'Extends the lease of a batch: it ends after the interval lease (1 millisecond to 1 day) from '
    'now. Returns the new token; the old one is no longer valid. With 1 millisecond the batch is '
    'released and returned again at once. waits_for: what keeps the batch '
    'from being published, for idem.relays and idem_health. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or '
    'read-only transaction), 55000 (stale token, or transaction ids went backwards).';

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
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    IF NOT idem.park(this, idem.held_batch(this, partition, token), message_id, NULL,
                     idem.truncated_error(error))
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
    'Parks one effect of the leased batch: stores it with its error, so '
    'that the other effects of the partition are delivered. See the view idem.parked, '
    'idem_relay_unpark and idem_relay_discard. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (stale token, or transaction ids went backwards).';

CREATE FUNCTION idem_relay_unpark(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_unpark.relay, 0);
BEGIN
    PERFORM idem.check_transaction('idem_relay_unpark()');
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
    'message id is parked. Errors: 22004 (null argument), 42704 (no such relay), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_relay_unpark_all(
    relay       text,
    error_like  text    DEFAULT '%',
    max_effects integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- All effects get the same due_at, so that they are delivered in the order of their seq.
    now_wall timestamptz := clock_timestamp();
    unparked integer;
BEGIN
    INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
    SELECT k.relay, k.partition, now_wall, k.effect, k.seq
      FROM idem.take_parked(idem_relay_unpark_all.relay, error_like, max_effects) k;
    GET DIAGNOSTICS unparked = ROW_COUNT;
    RETURN unparked;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark_all(text, text, integer) IS
    'Unparks effects, so that their relay delivers them next: the oldest ones, at most max_effects '
    '(1 to 10,000), with an error that matches the LIKE pattern error_like. Returns their number. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_relay_discard(relay text, message_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_discard.relay, 0);
BEGIN
    PERFORM idem.check_transaction('idem_relay_discard()');
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
    'delivered again. Errors: 22004 (null argument), 42704 (no such relay), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

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
    'argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction).';

CREATE FUNCTION idem_create_relay(
    name        text,
    partitions  integer DEFAULT 1,
    from_oldest boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    new_id integer;
    seq_now bigint;
BEGIN
    PERFORM idem.check_transaction('idem_create_relay()');
    IF name IS NULL OR partitions IS NULL OR from_oldest IS NULL THEN
        RAISE EXCEPTION 'name, partitions and from_oldest must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the name of the relay has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    ELSIF partitions NOT BETWEEN 1 AND 256 THEN
        RAISE EXCEPTION 'partitions is %', partitions
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 256.';
    END IF;
    -- The progress of a dropped relay is kept for a while. It must not become that of this relay,
    -- also if the sequence has fallen behind.
    new_id := greatest(nextval('idem.relay_id_seq'),
                       1 + (SELECT max(r.id) FROM idem.relay r),
                       1 + (SELECT max(p.relay) FROM idem.progress p));
    seq_now := idem.checked_number();
    INSERT INTO idem.relay (id, name, partitions, start_snapshot, start_floor)
    VALUES (new_id, idem_create_relay.name, idem_create_relay.partitions,
            CASE WHEN from_oldest THEN '1:1:' ELSE idem.full_snapshot() END,
            CASE WHEN from_oldest THEN 0 ELSE seq_now END);
    INSERT INTO idem.relay_partition (relay, partition)
    SELECT new_id, n FROM generate_series(0, idem_create_relay.partitions - 1) n;
EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'relay "%" already exists', name
            USING ERRCODE = 'duplicate_object',
                  HINT = 'To change its partitions, let it deliver all effects, drop it and create '
                         'it again.';
END
$$;
COMMENT ON FUNCTION idem_create_relay(text, integer, boolean) IS
    'Creates a relay. It reads every effect that is recorded from now on or, if from_oldest is '
    'true, from the oldest effect in the outbox. name: 1 to 255 bytes. partitions (1 to 256): the '
    'effects of one key are in one partition and are delivered in order. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42710 (the relay already exists), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction), 58000 (the '
    'sequence of the outbox went backwards).';

CREATE FUNCTION idem_drop_relay(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_drop_relay.name, 0);
BEGIN
    PERFORM idem.check_transaction('idem_drop_relay()');
    -- The row of the relay that CREATE EXTENSION creates is kept, because a restore would create
    -- that relay again.
    IF this.id = 1 THEN
        UPDATE idem.relay r SET dropped_at = now() WHERE r.id = this.id;
    END IF;
    DELETE FROM idem.relay r WHERE r.id <> 1 AND (r.id = this.id OR r.dropped_at IS NOT NULL);
    DELETE FROM idem.relay_partition p WHERE p.relay = this.id;
    DELETE FROM idem.delayed d WHERE d.relay = this.id;
    DELETE FROM idem.parked_effect k WHERE k.relay = this.id;
END
$$;
COMMENT ON FUNCTION idem_drop_relay(text) IS
    'Drops a relay with its delayed and its parked effects. The outbox no longer keeps effects '
    'for it. A relay that idem_create_relay creates with from_oldest => true delivers again what '
    'the outbox still has. Errors: 22004 (null argument), 42704 (no such relay), 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_repair_relays() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part         record;
    p            idem.progress;
    snapshot_now pg_snapshot;
    seq_now      bigint;
    moved        bigint := 0;
    affected     bigint;
BEGIN
    PERFORM idem.check_usable();
    PERFORM idem.lock_partition(r.relay, r.partition)
       FROM (SELECT * FROM idem.relay_partition ORDER BY relay, partition) r;
    LOCK TABLE idem.outbox_0, idem.outbox_1, idem.outbox_2, idem.outbox_3 IN EXCLUSIVE MODE;
    PERFORM idem.raise_sequences();
    seq_now := idem.last_outbox_seq();
    snapshot_now := idem.full_snapshot();
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- Effects recorded since the restore have low transaction ids and would be treated as
        -- delivered. Their sequence numbers, which continue after those of the dump, identify them.
        -- Effects just above the floor can be delivered again, although they were acknowledged.
        INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
        SELECT (part.relay).id, part.partition, greatest(o.deliver_after, now()), o, o.seq
          FROM idem.outbox_row o
         WHERE o.partition_hash % (part.relay).partitions = part.partition
           AND NOT (pg_visible_in_snapshot(o.tx, p.snapshot_from) AND o.seq <= p.floor_from)
           AND NOT (p.snapshot_to IS NOT NULL AND pg_visible_in_snapshot(o.tx, p.snapshot_to)
                    AND o.seq <= p.seq_after)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS affected = ROW_COUNT;
        moved := moved + affected;
        p.snapshot_to := snapshot_now;
        p.floor_to := seq_now;
        p.leased_until := NULL;
        p.seq_through := NULL;
        p.exhausted := false;
        p.deferring := false;
        p.from_delayed := false;
        p.written_at := clock_timestamp();
        PERFORM idem.append_progress(idem.close_pair(p));
    END LOOP;
    -- 3 is the first normal transaction id. Every snapshot of this server sees this transaction as
    -- ended, so the continued cursors treat each effect as delivered. A relay that starts at the
    -- oldest effect ('1:1:') still reads all effects.
    UPDATE idem.outbox_0 SET tx = '3';
    UPDATE idem.outbox_1 SET tx = '3';
    UPDATE idem.outbox_2 SET tx = '3';
    UPDATE idem.outbox_3 SET tx = '3';
    RETURN moved;
END
$$;
COMMENT ON FUNCTION idem_repair_relays() IS
    'Repairs the relays after a restore into a cluster with lower transaction ids, and raises '
    'sequences that are behind the rows that they number, as after logical replication. Stop '
    'producers and relays before. The effects that a relay has not acknowledged become its '
    'delayed effects, which are delivered first, and its cursor continues with the transaction '
    'ids of this cluster. Returns the number of these effects. Errors: 25000 (not READ '
    'COMMITTED), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_hand_over(
    relay       text,
    topics      text[],
    partition   integer DEFAULT 0,
    max_effects integer DEFAULT 1000,
    max_bytes   bigint  DEFAULT 16777216
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this      idem.relay := idem.check_relay(idem_hand_over.relay, idem_hand_over.partition);
    effect    record;
    token     bigint;
    effects   integer;
    receiving boolean;
    at_most   integer := max_effects;
    refused   bigint[] := '{}';
    reasons   text[] := '{}';
BEGIN
    IF topics IS NULL OR array_position(topics, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'topics and each topic must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- The batch, its messages and its acknowledgement are one transaction, so no other transaction
    -- sees the lease. If an effect cannot be received, the batch is rolled back. The next attempt
    -- leases a batch that ends with this effect, and parks the effect.
    LOOP
        effects := 0;
        receiving := false;
        BEGIN
            FOR effect IN
                SELECT *
                  FROM @extschema@.idem_relay_next(idem_hand_over.relay, partition, at_most,
                                                   '1 minute'::interval,
                                                   idem_hand_over.max_bytes)
            LOOP
                effects := effects + 1;
                token := effect.token;
                IF effect.seq = ANY (refused) THEN
                    PERFORM idem.park(this, idem.held_batch(this, partition, token), NULL,
                                      effect.seq,
                                      reasons[array_position(refused, effect.seq)]);
                ELSIF effect.topic = ANY (topics) THEN
                    receiving := true;
                    PERFORM @extschema@.idem_receive_bytes(
                        effect.message_id, effect.topic, effect.payload,
                        idem.with_trace(effect.headers, effect.traceparent), effect.key,
                        NULL::timestamptz, effect.type, effect.content_type);
                    receiving := false;
                END IF;
            END LOOP;
            IF effects > 0 THEN
                PERFORM @extschema@.idem_relay_ack(idem_hand_over.relay, partition, token);
            END IF;
            RETURN effects;
        EXCEPTION
            -- These are errors of one message. All other errors are errors of the environment, and
            -- a retry can succeed.
            WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
                IF NOT receiving THEN
                    RAISE;
                END IF;
                refused := refused || effect.seq;
                reasons := reasons || idem.truncated_error(format('%s: %s', SQLSTATE, SQLERRM));
                at_most := effects;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_hand_over(text, text[], integer, integer, bigint) IS
    'Delivers the next batch of a relay into the durable inbox of this database, in one '
    'transaction: an effect with a topic in topics is received for the destination of that name, '
    'other effects are skipped, and the batch is acknowledged. An effect that cannot be received '
    'is parked with its error. Waits for other transactions as idem_receive does. max_effects and '
    'max_bytes: as for idem_relay_next. Returns the number of effects in the batch; 0 if there are '
    'no effects or another process holds the lease of the partition. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 42704 (no such relay), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction), 55000 (transaction ids went backwards), '
    '58000 (a sequence went backwards).';
