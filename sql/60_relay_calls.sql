-- The relay's calls: next, publish (outside), ack, each a short transaction of its own.
--
-- A batch is what the newer of two snapshots sees and the older does not, ordered by seq (the way of PgQ). So a
-- transaction that took its sequence number early and commits late is in a later batch, and holds up nobody else.
-- These functions read the newest progress after they have locked: they need READ COMMITTED.

CREATE FUNCTION idem.check_relay(relay_name text, partition integer) RETURNS idem.relay
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_relay idem.relay;
BEGIN
    IF relay_name IS NULL THEN
        RAISE EXCEPTION 'relay must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF partition IS NULL THEN
        RAISE EXCEPTION 'partition must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT * INTO found_relay FROM idem.relay r WHERE r.name = relay_name AND r.dropped_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'relay "%" does not exist', relay_name
            USING ERRCODE = 'undefined_object', HINT = 'Make it with idem_create_relay, or look at the view idem.relays.';
    ELSIF partition < 0 OR partition >= found_relay.partitions THEN
        RAISE EXCEPTION 'relay "%" has no partition %', relay_name, partition
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Its partitions are 0 to %s.', found_relay.partitions - 1);
    END IF;
    RETURN found_relay;
END
$$;
COMMENT ON FUNCTION idem.check_relay(text, integer) IS 'The relay of that name. Errors: 22004, 42704, 22023.';

CREATE FUNCTION idem.lock_partition(relay integer, partition integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a relay works in READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Its progress must be read as it is now, not as it was when the transaction began.';
    END IF;
    PERFORM 1 FROM idem.relay_partition p
     WHERE p.relay = lock_partition.relay AND p.partition = lock_partition.partition
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the relay has been dropped' USING ERRCODE = 'undefined_object';
    END IF;
    -- Before the statement that reads progress, so that its snapshot is newer than a change of tables.
    LOCK TABLE idem.progress_0, idem.progress_1 IN ROW EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION idem.lock_partition(integer, integer) IS 'Makes the steps of a partition follow each other. Errors: 25000, 25006, 42704.';

CREATE FUNCTION idem.progress_of(relay idem.relay, partition integer) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    newest idem.progress;
BEGIN
    SELECT p.* INTO newest FROM idem.progress p
     WHERE p.relay = progress_of.relay.id AND p.partition = progress_of.partition
     ORDER BY p.pos DESC LIMIT 1;
    IF NOT FOUND THEN
        newest.relay := progress_of.relay.id;
        newest.partition := progress_of.partition;
        newest.pos := 0;
        newest.seq_after := 0;
        newest.exhausted := false;
        newest.deferring := false;
        newest.from_delayed := false;
        newest.floor_from := progress_of.relay.start_floor;
        newest.snapshot_from := progress_of.relay.start_snapshot;
    END IF;
    RETURN newest;
END
$$;
COMMENT ON FUNCTION idem.progress_of(idem.relay, integer) IS 'The newest progress of a partition; its start when there is none.';

CREATE FUNCTION idem.append_progress(p idem.progress) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.pos := nextval('idem.progress_pos_seq');
    IF (SELECT t.current = 0 FROM idem.progress_turn t) THEN
        INSERT INTO idem.progress_0 VALUES (p.*);
    ELSE
        INSERT INTO idem.progress_1 VALUES (p.*);
    END IF;
    RETURN p.pos;
END
$$;
COMMENT ON FUNCTION idem.append_progress(idem.progress) IS 'Appends a state of a partition; answers its pos, the token of a lease.';

-- The range (new transactions) walks seq in order and stops at the limit. The late committers are few transactions of
-- any size: each is walked in order by the index on (tx, seq). It has no SET clause so that it melts into the statements
-- that call it and copies nothing; they plan for the indexes whatever the statistics say (a slice is empty when the plan
-- is made and large when it runs).
-- Its arguments are plain values: a field of a row would be taken out of it again for every effect.
CREATE FUNCTION idem.effects_between(
    seq_after     bigint,
    floor_from    bigint,
    ceiling_to    bigint,
    snapshot_from pg_snapshot,
    first_new     xid8,
    snapshot_to   pg_snapshot,
    partitions    integer,
    partition     integer,
    at_most       integer
) RETURNS SETOF idem.outbox_row
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT both_kinds.* FROM (
        (SELECT o.* FROM idem.outbox_row o
          WHERE o.seq > greatest(effects_between.seq_after, floor_from) AND o.seq <= ceiling_to
            AND o.tx >= first_new AND pg_visible_in_snapshot(o.tx, snapshot_to)
            AND (partitions = 1 OR o.partition_hash % partitions = effects_between.partition)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT o.* FROM pg_snapshot_xip(snapshot_from) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND pg_visible_in_snapshot(late.tx, snapshot_to) AND o.seq > effects_between.seq_after
               AND (partitions = 1 OR o.partition_hash % partitions = effects_between.partition)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
    ) both_kinds
    ORDER BY both_kinds.seq LIMIT at_most;
END;
COMMENT ON FUNCTION idem.effects_between(bigint, bigint, bigint, pg_snapshot, xid8, pg_snapshot, integer, integer, integer) IS 'The next effects of a partition between the two snapshots of its progress, ordered by seq.';

-- A crash takes back ids that were drawn and have written nothing. The snapshot lists them as running, so whoever draws
-- them anew is still new to it: only an id below its xmax that it does not list would be taken for delivered.
CREATE FUNCTION idem.lies_ahead(past pg_snapshot) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next_xid xid8 := idem.next_xid();
BEGIN
    RETURN pg_snapshot_xmax(past) > next_xid
       AND pg_snapshot_xmax(past)::text::bigint - next_xid::text::bigint > (SELECT count(*) FROM pg_snapshot_xip(past) x WHERE x >= next_xid);
END
$$;
COMMENT ON FUNCTION idem.lies_ahead(pg_snapshot) IS 'Whether a cursor knows transaction ids that this cluster has yet to reach.';

CREATE FUNCTION idem.check_xids(from_snapshot pg_snapshot) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    IF idem.lies_ahead(from_snapshot)
       OR EXISTS (SELECT 1 FROM idem.outbox_row o
                   WHERE o.tx >= pg_snapshot_xmax(pg_current_snapshot())
                     AND o.tx IS DISTINCT FROM pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'the transaction ids of the outbox lie in the future of this cluster'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'This happens after a restore into a younger cluster. New effects would look as if they were delivered.',
                  HINT = 'Stop producers and relays, then SELECT @extschema@.idem_repair_relays().';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_xids(pg_snapshot) IS 'Error 55000 when transaction ids went backwards.';

-- A snapshot's xmax is one above the newest *completed* transaction. Others above it can be running with numbers that they
-- drew long ago, and a snapshot does not list them: here they are listed, and whoever is not has not begun. Nor does it
-- list the transaction that takes it, which may have yet to record: a relay that works in the transaction of its batch.
CREATE FUNCTION idem.full_snapshot() RETURNS pg_snapshot
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here     pg_snapshot := pg_current_snapshot();
    next_xid xid8 := idem.next_xid();  -- after the snapshot, so not below its xmax
    running  text;
BEGIN
    SELECT string_agg(x.id::text, ',' ORDER BY x.id) INTO running
      FROM (SELECT pg_snapshot_xip(here)
            UNION ALL
            SELECT young::text::xid8
              FROM generate_series(pg_snapshot_xmax(here)::text::bigint, next_xid::text::bigint - 1) young
            UNION
            SELECT pg_current_xact_id_if_assigned()) x (id);
    RETURN format('%s:%s:%s', pg_snapshot_xmin(here), next_xid, running)::pg_snapshot;
END
$$;
COMMENT ON FUNCTION idem.full_snapshot() IS 'The snapshot of this moment, with every transaction in its list that has begun and may still record.';

-- Advances p to a fresh pair of snapshots. The floor is read before the snapshot and the ceiling after it, each as a
-- statement of its own: a transaction that begins later takes its numbers above the floor, and none that the snapshot
-- sees has one above the ceiling.
CREATE FUNCTION idem.open_pair(p idem.progress) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.check_xids(p.snapshot_from);
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO p.floor_to FROM idem.outbox_seq s;
    p.snapshot_to := idem.full_snapshot();
    SELECT s.last_value INTO p.ceiling_to FROM idem.outbox_seq s;
    p.seq_after := 0;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.open_pair(idem.progress) IS 'Gives a progress its newer snapshot.';

CREATE FUNCTION idem.close_pair(p idem.progress) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.snapshot_from := p.snapshot_to;
    p.floor_from := p.floor_to;
    p.snapshot_to := NULL;
    p.floor_to := NULL;
    p.ceiling_to := NULL;
    p.seq_after := 0;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.close_pair(idem.progress) IS 'Everything between the two snapshots is done: the newer becomes the older.';

-- Leases the next effects between two snapshots; null when there are none. Measures the batch, and leaves it in place.
CREATE FUNCTION idem.lease_batch(this idem.relay, p idem.progress, before timestamptz, lease interval, max_effects integer) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    resumed boolean;
    found_effects bigint;
BEGIN
    p.from_delayed := false;
    p.leased_until := NULL;
    p.written_at := before;
    LOOP
        resumed := p.snapshot_to IS NOT NULL;
        IF NOT resumed THEN
            p := idem.open_pair(p);
        END IF;
        SELECT count(*), max(e.seq), coalesce(bool_or(e.deliver_after > before), false)
          INTO found_effects, p.seq_through, p.deferring
          FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, max_effects) e;
        IF found_effects > 0 THEN
            p.exhausted := found_effects < max_effects;
            p.leased_until := before + lease;
            p.pos := idem.append_progress(p);
            RETURN p;
        ELSIF resumed THEN
            -- The last batch was full and took all that there was: what came since is in the next pair.
            p := idem.close_pair(p);
            p.pos := idem.append_progress(p);
        ELSE
            -- Nothing is written while nothing happens; but what was looked through in vain is not looked through again.
            IF p.ceiling_to > p.floor_from + 1000 THEN
                PERFORM idem.append_progress(idem.close_pair(p));
            END IF;
            RETURN NULL;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.lease_batch(idem.relay, idem.progress, timestamptz, interval, integer) IS 'The progress that leases the next batch of a partition; null when there is nothing.';

-- Leases what was put aside and is due, in the order in which it is due.
CREATE FUNCTION idem.lease_delayed(this idem.relay, p idem.progress, before timestamptz, lease interval, max_effects integer) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.from_delayed := true;
    p.deferring := false;
    p.leased_until := before + lease;
    p.written_at := before;
    p.pos := idem.append_progress(p);
    UPDATE idem.delayed d SET token = p.pos
      FROM (SELECT n.due_at, n.seq FROM idem.delayed n
             WHERE n.relay = this.id AND n.partition = p.partition AND n.due_at <= before
             ORDER BY n.due_at, n.seq LIMIT max_effects) next
     WHERE d.relay = this.id AND d.partition = p.partition AND d.due_at = next.due_at AND d.seq = next.seq;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.lease_delayed(idem.relay, idem.progress, timestamptz, interval, integer) IS 'The progress that leases the delayed effects of a partition that are due.';

CREATE FUNCTION idem_relay_next(relay text, partition integer DEFAULT 0, max_effects integer DEFAULT 100, lease interval DEFAULT '30 seconds')
RETURNS TABLE (
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
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    this    idem.relay := idem.check_relay(idem_relay_next.relay, idem_relay_next.partition);
    p       idem.progress;
    before  timestamptz;
BEGIN
    IF max_effects IS NULL OR lease IS NULL THEN
        RAISE EXCEPTION 'max_effects and lease must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_effects NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_effects is %', max_effects
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    ELSIF lease NOT BETWEEN '1 millisecond' AND '1 day' THEN
        RAISE EXCEPTION 'lease is %', lease
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 millisecond and 1 day.';
    END IF;

    PERFORM idem.lock_partition(this.id, partition);
    LOOP
        p := idem.progress_of(this, partition);
        before := clock_timestamp();
        IF p.leased_until > before THEN
            RETURN;  -- somebody is at it
        END IF;

        -- What was put aside and is due goes first.
        IF EXISTS (SELECT 1 FROM idem.delayed d WHERE d.relay = this.id AND d.partition = idem_relay_next.partition AND d.due_at <= before) THEN
            p := idem.lease_delayed(this, p, before, lease, max_effects);
            RETURN QUERY
                SELECT p.pos, d.seq, (d.effect).message_id, (d.effect).topic, (d.effect).key, (d.effect).type, (d.effect).payload,
                       (d.effect).content_type, (d.effect).headers, (d.effect).traceparent, (d.effect).recorded_at, x.name
                  FROM idem.delayed d
                  LEFT JOIN idem.destination x ON x.id = (d.effect).source_destination
                 WHERE d.relay = this.id AND d.partition = p.partition AND d.token = p.pos
                   AND NOT EXISTS (SELECT 1 FROM idem.parked k WHERE k.relay = this.id AND k.seq = d.seq)
                 ORDER BY d.due_at, d.seq;
        ELSE
            p := idem.lease_batch(this, p, before, lease, max_effects);
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
                   AND NOT EXISTS (SELECT 1 FROM idem.parked k WHERE k.relay = this.id AND k.seq = e.seq)
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
COMMENT ON FUNCTION idem_relay_next(text, integer, integer, interval) IS 'Leases the next effects of a partition, in order; token fences the lease. No row: nothing to do, or another process holds the lease. After the lease has run out the same effects come again. Errors: 22004, 22023, 42704, 25000 (not READ COMMITTED), 25006, 55000 (transaction ids went backwards).';

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
                  HINT = 'The lease ran out and another process took it, or the batch is acknowledged: take the next with idem_relay_next.';
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.held_batch(idem.relay, integer, bigint) IS 'The progress whose batch this token holds. Errors: 22004, 55000.';

-- The cursor moves behind the batch that is out; what waits for its time is put aside.
CREATE FUNCTION idem.settle(this idem.relay, partition integer, token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    p idem.progress := idem.held_batch(this, partition, token);
BEGIN
    IF p.from_delayed THEN
        DELETE FROM idem.delayed d WHERE d.relay = this.id AND d.partition = settle.partition AND d.token = settle.token;
        p.from_delayed := false;
    ELSE
        IF p.deferring THEN
            INSERT INTO idem.delayed (relay, partition, due_at, effect)
            SELECT this.id, settle.partition, e.deliver_after, e
              FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, 10000) e
             WHERE e.seq <= p.seq_through
               AND e.deliver_after > p.written_at
               AND NOT EXISTS (SELECT 1 FROM idem.parked k WHERE k.relay = this.id AND k.seq = e.seq);
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

CREATE FUNCTION idem_relay_park(relay text, partition integer, token bigint, message_id uuid, error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_relay_park.relay, idem_relay_park.partition);
    p    idem.progress;
BEGIN
    IF message_id IS NULL OR error IS NULL THEN
        RAISE EXCEPTION 'message_id and error must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(error) > 8192 THEN
        RAISE EXCEPTION 'error has % bytes', octet_length(error)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'At most 8192 bytes are kept: shorten it.';
    END IF;
    PERFORM idem.lock_partition(this.id, partition);
    p := idem.held_batch(this, partition, token);
    IF p.from_delayed THEN
        INSERT INTO idem.parked (relay, partition, error, effect)
        SELECT this.id, idem_relay_park.partition, idem_relay_park.error, d.effect
          FROM idem.delayed d
         WHERE d.relay = this.id AND d.partition = idem_relay_park.partition AND d.token = idem_relay_park.token
           AND (d.effect).message_id = idem_relay_park.message_id
        ON CONFLICT DO NOTHING;
    ELSE
        INSERT INTO idem.parked (relay, partition, error, effect)
        SELECT this.id, idem_relay_park.partition, idem_relay_park.error, e
          FROM idem.effects_between(p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from, pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                   this.partitions, p.partition, 10000) e
         WHERE e.seq <= p.seq_through AND e.message_id = idem_relay_park.message_id
           AND (e.deliver_after IS NULL OR e.deliver_after <= p.written_at)
        ON CONFLICT DO NOTHING;
    END IF;
    IF NOT FOUND AND NOT EXISTS (SELECT 1 FROM idem.parked k
                                  WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_park.message_id) THEN
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
        DELETE FROM idem.parked k
         WHERE k.relay = this.id AND (k.effect).message_id = idem_relay_unpark.message_id
        RETURNING k.*
    )
    INSERT INTO idem.delayed (relay, partition, due_at, effect)
    SELECT b.relay, b.partition, clock_timestamp(), b.effect FROM back b;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION idem_relay_unpark(text, uuid) IS 'Gives a parked effect back to its relay, which delivers it next; false when none is parked. Errors: 22004, 42704, 25006.';

CREATE FUNCTION idem_create_relay(name text, partitions integer DEFAULT 1, from_oldest boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    new_id integer;
    seq_now bigint;
BEGIN
    IF name IS NULL OR partitions IS NULL OR from_oldest IS NULL THEN
        RAISE EXCEPTION 'name, partitions and from_oldest must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the name of the relay has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    ELSIF partitions NOT BETWEEN 1 AND 256 THEN
        RAISE EXCEPTION 'partitions is %', partitions
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 256.';
    ELSIF EXISTS (SELECT 1 FROM idem.relay r WHERE r.name = idem_create_relay.name AND r.dropped_at IS NULL) THEN
        RAISE EXCEPTION 'relay "%" exists already', name
            USING ERRCODE = 'duplicate_object', HINT = 'To change its partitions let it drain, drop it and create it again.';
    END IF;
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO seq_now FROM idem.outbox_seq s;
    INSERT INTO idem.relay (name, partitions, start_snapshot, start_floor)
    VALUES (idem_create_relay.name, idem_create_relay.partitions,
            CASE WHEN from_oldest THEN '1:1:' ELSE idem.full_snapshot() END,
            CASE WHEN from_oldest THEN 0 ELSE seq_now END)
    RETURNING id INTO new_id;
    INSERT INTO idem.relay_partition (relay, partition) SELECT new_id, n FROM generate_series(0, idem_create_relay.partitions - 1) n;
END
$$;
COMMENT ON FUNCTION idem_create_relay(text, integer, boolean) IS 'A new relay: it sees every effect that is recorded from now on, or from the oldest that is kept. Partitions keep the order of a key. Errors: 22004, 22023, 42710, 25006.';

CREATE FUNCTION idem_drop_relay(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_drop_relay.name, 0);
BEGIN
    UPDATE idem.relay r SET dropped_at = now() WHERE r.id = this.id;
    DELETE FROM idem.relay_partition p WHERE p.relay = this.id;
    DELETE FROM idem.delayed d WHERE d.relay = this.id;
    DELETE FROM idem.parked k WHERE k.relay = this.id;
END
$$;
COMMENT ON FUNCTION idem_drop_relay(text) IS 'Drops a relay with what it has put aside: the outbox does not wait for it any longer. Errors: 22004, 42704, 25006.';

CREATE FUNCTION idem_repair_relays() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part     record;
    p        idem.progress;
    here     pg_snapshot;
    seq_now  bigint;
    moved    bigint := 0;
    affected bigint;
BEGIN
    PERFORM idem.lock_partition(r.relay, r.partition) FROM (SELECT * FROM idem.relay_partition ORDER BY relay, partition) r;
    LOCK TABLE idem.outbox_0, idem.outbox_1, idem.outbox_2, idem.outbox_3 IN EXCLUSIVE MODE;
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO seq_now FROM idem.outbox_seq s;
    here := idem.full_snapshot();
    FOR part IN
        SELECT r AS relay, rp.partition FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- Producers have worked since the restore, and their young ids look delivered: their numbers, which go on where
        -- they stood, tell them apart. What was acknowledged last may come again.
        INSERT INTO idem.delayed (relay, partition, due_at, effect)
        SELECT (part.relay).id, part.partition, greatest(o.deliver_after, now()), o
          FROM idem.outbox_row o
         WHERE o.partition_hash % (part.relay).partitions = part.partition
           AND NOT (pg_visible_in_snapshot(o.tx, p.snapshot_from) AND o.seq <= p.floor_from)
           AND NOT (p.snapshot_to IS NOT NULL AND pg_visible_in_snapshot(o.tx, p.snapshot_to) AND o.seq <= p.seq_after)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS affected = ROW_COUNT;
        moved := moved + affected;
        p.snapshot_to := here;
        p.floor_to := seq_now;
        p.leased_until := NULL;
        p.seq_through := NULL;
        p.exhausted := false;
        p.deferring := false;
        p.from_delayed := false;
        p.written_at := clock_timestamp();
        PERFORM idem.append_progress(idem.close_pair(p));
    END LOOP;
    UPDATE idem.outbox_0 SET tx = '3';
    UPDATE idem.outbox_1 SET tx = '3';
    UPDATE idem.outbox_2 SET tx = '3';
    UPDATE idem.outbox_3 SET tx = '3';
    RETURN moved;
END
$$;
COMMENT ON FUNCTION idem_repair_relays() IS 'After a restore into a younger cluster: what each relay has not acknowledged is put aside for it and delivered first, and the cursors start at this cluster''s transaction ids. Answers how many effects were put aside.';
