-- The functions behind the views.

CREATE FUNCTION idem.waiting() RETURNS TABLE (
    relay              text,
    partition          integer,
    seq                bigint,
    message_id         uuid,
    topic              text,
    key                text,
    type               text,
    recorded_at        timestamptz,
    deliver_after      timestamptz,
    source_destination text,
    replay             boolean
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    part record;
    p    idem.progress;
BEGIN
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.name, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        RETURN QUERY
            SELECT (part.relay).name, part.partition, o.seq, o.message_id, o.topic, o.key, o.type,
                   o.recorded_at, o.deliver_after, d.name, o.replay
              FROM idem.outbox_row o LEFT JOIN idem.destination d ON d.id = o.source_destination
             WHERE (o.tx >= pg_snapshot_xmax(p.snapshot_from)
                    OR o.tx = ANY (ARRAY(SELECT pg_snapshot_xip(p.snapshot_from))))
               AND o.partition_hash % (part.relay).partitions = part.partition
               AND (p.snapshot_to IS NULL OR o.seq > p.seq_after
                    OR NOT pg_visible_in_snapshot(o.tx, p.snapshot_to));
        RETURN QUERY
            SELECT (part.relay).name, part.partition, (w.effect).seq, (w.effect).message_id,
                   (w.effect).topic, (w.effect).key, (w.effect).type, (w.effect).recorded_at,
                   (w.effect).deliver_after, d.name, (w.effect).replay
              FROM idem.delayed w
              LEFT JOIN idem.destination d ON d.id = (w.effect).source_destination
             WHERE w.relay = (part.relay).id AND w.partition = part.partition;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.waiting() IS
    'Returns the effects that each relay has not acknowledged, without payloads and headers.';

-- Counts up to a limit, because a health check must not be slowest when a relay has the largest
-- backlog. An effect with a deliver_after in the future does not count.
CREATE FUNCTION idem.lag(
    p            idem.progress,
    partitions   integer,
    OUT messages bigint,
    OUT oldest   timestamptz
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    at_most constant integer := 100000;
    now_wall timestamptz := clock_timestamp();
BEGIN
    SELECT count(*), min(greatest(w.recorded_at, w.deliver_after)) INTO messages, oldest
      FROM (
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > greatest(p.floor_from, p.seq_after)
            AND o.tx >= pg_snapshot_xmax(p.snapshot_from)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_from) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq > p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        -- Effects that the newer snapshot does not see are in the next pair of snapshots, even if
        -- their seq is below seq_after.
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_to) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq <= p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > p.floor_to AND o.seq <= p.seq_after
            AND o.tx >= pg_snapshot_xmax(p.snapshot_to)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= now_wall)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT (d.effect).recorded_at, d.due_at FROM idem.delayed d
          WHERE d.relay = p.relay AND d.partition = p.partition AND d.due_at <= now_wall
          ORDER BY d.due_at, d.seq LIMIT at_most)
      ) w;
END
$$;
COMMENT ON FUNCTION idem.lag(idem.progress, integer) IS
    'Returns how many due effects a partition has not acknowledged, counted up to 100,000 of each '
    'kind, and since when the oldest one is due.';

CREATE FUNCTION idem.relay_states() RETURNS TABLE (
    relay        text,
    partition    integer,
    lag_messages bigint,
    lag_seconds  double precision,
    leased_until timestamptz,
    last_step_at timestamptz,
    delayed      bigint,
    parked       bigint,
    blocks       text[],
    waits_for    text
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
BEGIN ATOMIC
    WITH held AS MATERIALIZED (
        SELECT pg_catalog.format('outbox_%s', s.slice) AS slice,
               idem.relays_holding(s.slice) AS holders
          FROM generate_series(0, 3) AS s (slice)
    )
    SELECT r.name,
           rp.partition,
           w.messages,
           coalesce(extract(epoch FROM clock_timestamp() - w.oldest), 0)::double precision,
           p.leased_until,
           p.written_at,
           (SELECT count(*) FROM idem.delayed d
             WHERE d.relay = r.id AND d.partition = rp.partition),
           (SELECT count(*) FROM idem.parked_effect k
             WHERE k.relay = r.id AND k.partition = rp.partition),
           ARRAY(SELECT h.slice FROM held h WHERE r.name = ANY (h.holders) ORDER BY h.slice),
           p.waits_for
      FROM idem.relay_partition rp
      JOIN idem.relay r ON r.id = rp.relay AND r.dropped_at IS NULL
     CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p
     CROSS JOIN LATERAL idem.lag(p, r.partitions) w;
END;
COMMENT ON FUNCTION idem.relay_states() IS 'Returns the rows of the view idem.relays.';

-- A transaction that has entered the rings holds a lock on idem.ring. A claim waits for the end of
-- a transaction, and holds no lock on a row of another table meanwhile, as an UPDATE does. Locks of
-- two transactions are read at one moment, because pg_locks is read once.
CREATE FUNCTION idem.claim_waits() RETURNS TABLE (
    pid                      integer,
    usename                  name,
    application_name         text,
    since                    timestamptz,
    blocked_by               integer,
    blocker_usename          name,
    blocker_application_name text,
    blocker_state            text,
    blocker_xact_start       timestamptz,
    blocker_gid              text
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH locks AS MATERIALIZED (
        SELECT l.*, l.relation IN (SELECT c.oid FROM pg_class c
                                    WHERE c.relnamespace = 'idem'::regnamespace) AS is_idem
          FROM pg_locks l
         WHERE l.database IS NULL OR l.database = (SELECT d.oid FROM pg_database d
                                                    WHERE d.datname = current_database())
    )
    SELECT w.pid, a.usename, a.application_name, w.waitstart,
           nullif(b.pid, 0), coalesce(h.usename, p.owner), h.application_name, h.state,
           coalesce(h.xact_start, p.prepared), p.gid
      FROM locks w
     CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
      JOIN pg_stat_activity a ON a.pid = w.pid
      LEFT JOIN pg_stat_activity h ON h.pid = b.pid
      LEFT JOIN pg_prepared_xacts p ON b.pid = 0 AND p.transaction = w.transactionid
     WHERE NOT w.granted
       AND (w.locktype IN ('transactionid', 'spectoken') OR w.locktype = 'tuple' AND w.is_idem)
       AND EXISTS (SELECT FROM locks e
                    WHERE e.pid = w.pid AND e.granted AND e.mode = 'RowExclusiveLock'
                      AND e.relation = 'idem.ring'::regclass)
       AND NOT EXISTS (SELECT FROM locks e
                        WHERE e.pid = w.pid AND e.granted AND e.locktype = 'tuple'
                          AND NOT e.is_idem);
$$;
COMMENT ON FUNCTION idem.claim_waits() IS 'Returns the rows of the view idem.waiting_claims.';
