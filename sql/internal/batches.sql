-- Batches: the effects that the newer of two snapshots sees and the older one does not see, ordered
-- by seq (as in PgQ). If a transaction takes its sequence number early and commits late, its
-- effects are in a later batch and do not delay other effects.
--
-- Some functions below set enable_sort = off or enable_seqscan = off. A plan that still needs a
-- sort or a sequential scan then has a cost of 1e10, which would start JIT compilation. So these
-- functions set jit = off.

-- This function does not use a SELECT from the sequence, which can return a number that is up to 32
-- too high: nextval first writes the number for the WAL into the row and then the number that it
-- returns, and a SELECT reads the row without the lock of the page. If a relay used such a number
-- as its floor, it would never read the effects that later transactions record with the numbers
-- below it.
CREATE FUNCTION idem.last_outbox_seq() RETURNS bigint
LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT coalesce(pg_catalog.pg_sequence_last_value('idem.outbox_seq'::pg_catalog.regclass), 0);
END;
COMMENT ON FUNCTION idem.last_outbox_seq() IS
    'Returns the last number of the outbox sequence, or 0 before the first. Each number taken '
    'before this function is at most the result, and each number taken after it is higher. The '
    'function reads the sequence under the lock of its page.';

-- Read the floors and the rows before the sequence: they may get higher numbers afterwards.
CREATE FUNCTION idem.checked_number() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    used bigint := greatest(idem.highest_floor(), (SELECT max(o.seq) FROM idem.outbox_row o));
    last bigint := idem.last_outbox_seq();
BEGIN
    IF last < used THEN
        PERFORM idem.fail_behind('outbox');
    END IF;
    RETURN last;
END
$$;
COMMENT ON FUNCTION idem.checked_number() IS
    'Returns the last number of the outbox sequence. Error: 58000 (it is below the floor of a '
    'relay or below an effect).';

-- In the names of arguments and columns, _from belongs to the older snapshot and _to to the newer
-- one. A pair of snapshots covers floor_from < seq <= ceiling_to, and floor_to is the floor of the
-- next pair.
--
-- The effects of new transactions are read in the order of seq, up to the limit. New transactions
-- had no transaction id at the older snapshot. A transaction gets its id before its first sequence
-- number, so all its numbers are above the floor.
--
-- The transactions that were still running at the older snapshot are few but can be of any size:
-- the effects of each of them are read in order through the index on (tx, seq).
--
-- The function has no SET clause, so that it is inlined into the calling statements and copies
-- nothing. The settings of the callers make their plans use the indexes whatever the statistics
-- are, because a slice can be empty when the plan is made and large when it runs. The arguments are
-- scalar values, because a field of a row would be extracted again for every effect.
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
             WHERE o.tx = late.tx AND pg_visible_in_snapshot(late.tx, snapshot_to)
               AND o.seq > effects_between.seq_after
               AND (partitions = 1 OR o.partition_hash % partitions = effects_between.partition)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
    ) both_kinds
    ORDER BY both_kinds.seq LIMIT at_most;
END;
COMMENT ON FUNCTION idem.effects_between(
    bigint, bigint, bigint, pg_snapshot, xid8, pg_snapshot, integer, integer, integer
) IS
    'Returns the next effects of a partition between the two snapshots of its progress, ordered '
    'by seq, at most at_most.';

-- After a crash the server assigns some ids again: those of transactions that had written nothing.
-- The snapshot of a cursor lists these ids as running, so the effects of the new transactions are
-- delivered. The first condition looks for ids below xmax that this cluster has not assigned and
-- that the snapshot does not list: later effects with these ids would be treated as delivered. The
-- second condition finds a restored cursor that was ahead when it was restored, even if this
-- cluster has assigned its ids since.
CREATE FUNCTION idem.lies_ahead(p idem.progress) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    past     pg_snapshot := p.snapshot_from;
    next_xid xid8 := idem.next_xid();
BEGIN
    RETURN pg_snapshot_xmax(past) > next_xid
           AND pg_snapshot_xmax(past)::text::bigint - next_xid::text::bigint
               > (SELECT count(*) FROM pg_snapshot_xip(past) x WHERE x >= next_xid)
        OR EXISTS (SELECT 1 FROM idem.relay r
                    WHERE r.id = p.relay AND pg_snapshot_xmax(past) > r.restored_at_xid
                      AND coalesce(p.written_at, '-infinity') <= r.restored_at);
END
$$;
COMMENT ON FUNCTION idem.lies_ahead(idem.progress) IS
    'Returns whether a cursor contains transaction ids that this cluster has not assigned yet, or '
    'had not assigned when the cursor was restored.';

CREATE FUNCTION idem.check_xids(p idem.progress) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF idem.lies_ahead(p)
       OR EXISTS (SELECT 1 FROM idem.outbox_row o
                   WHERE o.tx >= pg_snapshot_xmax(pg_current_snapshot())
                     AND o.tx IS DISTINCT FROM pg_current_xact_id_if_assigned()) THEN
        RAISE EXCEPTION 'transaction ids of the outbox or of a relay are ahead of this cluster'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'This happens after a restore into a younger cluster. New effects would '
                           'be treated as delivered.',
                  HINT = 'Stop producers and relays, then run SELECT '
                         '@extschema@.idem_repair_relays().';
    END IF;
END
$$;
COMMENT ON FUNCTION idem.check_xids(idem.progress) IS
    'Checks that transaction ids did not go backwards, as they do after a restore into a younger '
    'cluster. Error: 55000.';

-- The xmax of a snapshot is one above the newest completed transaction. Transactions with higher
-- ids can be running. They may have taken their sequence numbers long ago, and the snapshot does
-- not list them. This function lists them too, and returns the next transaction id as xmax. It also
-- lists the current transaction, which its own snapshot omits, because a relay can still record
-- effects in the transaction in which it reads its batch.
CREATE FUNCTION idem.full_snapshot() RETURNS pg_snapshot
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    snapshot_now pg_snapshot := pg_current_snapshot();
    next_xid     xid8 := idem.next_xid();  -- read after the snapshot, so at least its xmax
    running      text;
BEGIN
    SELECT string_agg(x.id::text, ',' ORDER BY x.id) INTO running
      FROM (SELECT pg_snapshot_xip(snapshot_now)
            UNION ALL
            SELECT young::text::xid8
              FROM generate_series(pg_snapshot_xmax(snapshot_now)::text::bigint,
                                   next_xid::text::bigint - 1) young
            UNION
            SELECT pg_current_xact_id_if_assigned()) x (id);
    RETURN format('%s:%s:%s', pg_snapshot_xmin(snapshot_now), next_xid, running)::pg_snapshot;
END
$$;
COMMENT ON FUNCTION idem.full_snapshot() IS
    'Returns the current snapshot. Its list contains every transaction that has an id and may '
    'still record effects.';

-- The floor is read before the snapshot and the ceiling after it, each in a statement of its own: a
-- transaction that gets its id after the snapshot has only numbers above the floor, and no
-- transaction that the snapshot sees has a number above the ceiling.
CREATE FUNCTION idem.open_pair(p idem.progress) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.floor_to := idem.checked_number();
    p.snapshot_to := idem.full_snapshot();
    p.ceiling_to := idem.checked_number();
    p.seq_after := 0;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.open_pair(idem.progress) IS
    'Opens a pair: takes a new snapshot as the newer one.';

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
COMMENT ON FUNCTION idem.close_pair(idem.progress) IS
    'Returns the progress after all effects between its two snapshots: the newer snapshot becomes '
    'the older one.';

-- Reads without a lock, and at most 1,000 effects of each kind: of new transactions and of each
-- late one. Many effects of other partitions are work too: lease_batch moves the cursor past them,
-- so that they are not read again. The next check finds an effect that this check misses.
--
-- A sequence below a floor hides new effects from this function, so it compares the two. It reads
-- the floor first, because both rise while it runs. A sequence below a row does not hide the row: open_pair finds it. The highest row is not read here, because
-- that reads all effects of an open transaction at each poll.
CREATE FUNCTION idem.has_work(this idem.relay, partition integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    p idem.progress;
    floor CONSTANT bigint := idem.highest_floor();
BEGIN
    PERFORM idem.check_transaction('a function of relays');
    IF idem.last_outbox_seq() < floor THEN
        PERFORM idem.fail_behind('outbox');
    END IF;
    p := idem.progress_of(this, partition);
    IF p.leased_until > clock_timestamp() THEN
        RETURN false;
    END IF;
    RETURN p.snapshot_to IS NOT NULL
        OR EXISTS (SELECT 1
                     FROM (SELECT o.partition_hash, row_number() OVER () AS n FROM (
                               SELECT x.partition_hash FROM idem.outbox_row x
                                WHERE x.seq > p.floor_from ORDER BY x.seq LIMIT 1000) o) e
                    WHERE e.partition_hash % this.partitions = has_work.partition OR e.n = 1000)
        OR EXISTS (SELECT 1 FROM pg_snapshot_xip(p.snapshot_from) AS late (tx), LATERAL (
                       SELECT o.partition_hash, row_number() OVER () AS n FROM (
                           SELECT x.partition_hash FROM idem.outbox_row x
                            WHERE x.tx = late.tx ORDER BY x.tx, x.seq LIMIT 1000) o) e
                    WHERE e.partition_hash % this.partitions = has_work.partition OR e.n = 1000)
        OR EXISTS (SELECT 1 FROM idem.delayed d
                    WHERE d.relay = this.id AND d.partition = has_work.partition
                      AND d.due_at <= clock_timestamp());
END
$$;
COMMENT ON FUNCTION idem.has_work(idem.relay, integer) IS
    'Returns whether a partition needs to be locked: it is not leased, and there may be effects '
    'for it, or many effects for other partitions.';

-- Computes the bounds of the batch and does not copy its effects. The first effect is in the batch
-- whatever its size.
CREATE FUNCTION idem.lease_batch(
    this        idem.relay,
    p           idem.progress,
    chosen_at   timestamptz,
    lease       interval,
    max_effects integer,
    max_bytes   bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    resumed boolean;
    found_effects bigint;
    bytes bigint;
    is_cut boolean;
BEGIN
    p.from_delayed := false;
    p.leased_until := NULL;
    p.written_at := chosen_at;
    LOOP
        resumed := p.snapshot_to IS NOT NULL;
        IF NOT resumed THEN
            p := idem.open_pair(p);
        END IF;
        SELECT count(*),
               max(e.seq),
               coalesce(bool_or(e.deliver_after > chosen_at), false),
               sum(idem.effect_bytes(e.payload, e.headers))
          INTO found_effects, p.seq_through, p.deferring, bytes
          FROM idem.effects_between(
                   p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                   pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                   this.partitions, p.partition, max_effects) e;
        is_cut := bytes > max_bytes;
        IF is_cut THEN
            -- Cut the batch after the last effect with which the sum is within the limit.
            SELECT max(e.seq), coalesce(bool_or(e.deliver_after > chosen_at), false)
              INTO p.seq_through, p.deferring
              FROM (SELECT x.seq, x.deliver_after, x.bytes,
                           sum(x.bytes) OVER (ORDER BY x.seq ROWS UNBOUNDED PRECEDING)
                               AS bytes_through
                      FROM (SELECT y.seq, y.deliver_after,
                                   idem.effect_bytes(y.payload, y.headers) AS bytes
                              FROM idem.effects_between(
                                       p.seq_after, p.floor_from, p.ceiling_to, p.snapshot_from,
                                       pg_snapshot_xmax(p.snapshot_from), p.snapshot_to,
                                       this.partitions, p.partition, max_effects) y) x) e
             WHERE e.bytes_through <= max_bytes OR e.bytes_through = e.bytes;
        END IF;
        IF found_effects > 0 THEN
            p.exhausted := found_effects < max_effects AND NOT is_cut;
            p.leased_until := chosen_at + lease;
            p.pos := idem.append_progress(p);
            IF bytes > idem.largest_payload() THEN
                PERFORM idem.park_too_large(this, p);
            END IF;
            RETURN p;
        ELSIF resumed THEN
            -- The last batch was full and contained all remaining effects of this pair of
            -- snapshots. Newer effects are in the next pair.
            p := idem.close_pair(p);
            p.pos := idem.append_progress(p);
        ELSE
            -- The effects that has_work found are not for this partition, or are acknowledged
            -- already. Move the cursor past them, so that the next polls write nothing.
            PERFORM idem.append_progress(idem.close_pair(p));
            RETURN NULL;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.lease_batch(
    idem.relay, idem.progress, timestamptz, interval, integer, bigint
) IS
    'Leases the next batch of a partition and returns its progress; null when there are no '
    'effects.';

-- Leases delayed effects that are due, in the order of due_at.
CREATE FUNCTION idem.lease_delayed(
    this        idem.relay,
    p           idem.progress,
    chosen_at   timestamptz,
    lease       interval,
    max_effects integer,
    max_bytes   bigint
) RETURNS idem.progress
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    p.from_delayed := true;
    p.deferring := false;
    p.leased_until := chosen_at + lease;
    p.written_at := chosen_at;
    p.pos := idem.append_progress(p);
    UPDATE idem.delayed d SET token = p.pos
      FROM (SELECT n.due_at, n.seq,
                   row_number() OVER in_order = 1 OR sum(n.bytes) OVER in_order <= max_bytes AS fits
              FROM (SELECT x.due_at, x.seq, x.bytes FROM idem.delayed x
                     WHERE x.relay = this.id AND x.partition = p.partition AND x.due_at <= chosen_at
                     ORDER BY x.due_at, x.seq LIMIT max_effects) n
            WINDOW in_order AS (ORDER BY n.due_at, n.seq ROWS UNBOUNDED PRECEDING)) next
     WHERE next.fits AND d.relay = this.id AND d.partition = p.partition
       AND d.due_at = next.due_at AND d.seq = next.seq;
    IF EXISTS (SELECT FROM idem.delayed d
                WHERE d.relay = this.id AND d.partition = p.partition AND d.token = p.pos
                  AND d.bytes > idem.largest_payload()) THEN
        PERFORM idem.park_too_large(this, p);
    END IF;
    RETURN p;
END
$$;
COMMENT ON FUNCTION idem.lease_delayed(
    idem.relay, idem.progress, timestamptz, interval, integer, bigint
) IS
    'Leases the delayed effects of a partition that are due and returns its progress.';
