-- The views for operators.

CREATE VIEW idem.inbox AS
    SELECT DISTINCT c.ring,
           d.name AS destination,
           COALESCE(c.id, c.key::text) AS id,
           c.claimed_at,
           c.fingerprint
      FROM (          SELECT 'short' AS ring, * FROM idem.inbox_short_0
            UNION ALL SELECT 'short', * FROM idem.inbox_short_1
            UNION ALL SELECT 'short', * FROM idem.inbox_short_2
            UNION ALL SELECT 'short', * FROM idem.inbox_short_3
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_0
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_1
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_2
            UNION ALL SELECT 'standard', * FROM idem.inbox_standard_3
            UNION ALL SELECT 'long', * FROM idem.inbox_long_0
            UNION ALL SELECT 'long', * FROM idem.inbox_long_1
            UNION ALL SELECT 'long', * FROM idem.inbox_long_2
            UNION ALL SELECT 'long', * FROM idem.inbox_long_3) c
      JOIN idem.destination d ON d.id = c.destination;
COMMENT ON VIEW idem.inbox IS
    'The claims, with readable ids. During a rotation a claim can be in two slices; the view '
    'shows it once.';

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

CREATE VIEW idem.outbox AS
    SELECT w.relay, w.partition, w.seq, w.message_id, w.topic, w.key, w.type,
           w.recorded_at, w.deliver_after, w.source_destination, w.replay
      FROM idem.waiting() w;
COMMENT ON VIEW idem.outbox IS
    'The effects that each relay has not acknowledged, without payloads and headers.';

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
    here timestamptz := clock_timestamp();
BEGIN
    SELECT count(*), min(greatest(w.recorded_at, w.deliver_after)) INTO messages, oldest
      FROM (
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > greatest(p.floor_from, p.seq_after)
            AND o.tx >= pg_snapshot_xmax(p.snapshot_from)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= here)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_from) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq > p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= here)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        -- Effects that the newer snapshot does not see are in the next pair of snapshots, even if
        -- their seq is below seq_after.
        (SELECT o.recorded_at, o.deliver_after
           FROM pg_snapshot_xip(p.snapshot_to) AS late (tx), LATERAL (
            SELECT o.* FROM idem.outbox_row o
             WHERE o.tx = late.tx AND o.seq <= p.seq_after
               AND o.partition_hash % partitions = p.partition
               AND (o.deliver_after IS NULL OR o.deliver_after <= here)
             ORDER BY o.tx, o.seq LIMIT at_most) o)
        UNION ALL
        (SELECT o.recorded_at, o.deliver_after FROM idem.outbox_row o
          WHERE o.seq > p.floor_to AND o.seq <= p.seq_after
            AND o.tx >= pg_snapshot_xmax(p.snapshot_to)
            AND o.partition_hash % partitions = p.partition
            AND (o.deliver_after IS NULL OR o.deliver_after <= here)
          ORDER BY o.seq LIMIT at_most)
        UNION ALL
        (SELECT (d.effect).recorded_at, d.due_at FROM idem.delayed d
          WHERE d.relay = p.relay AND d.partition = p.partition AND d.due_at <= here
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
    blocks       text[]
)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
BEGIN ATOMIC
    WITH held AS MATERIALIZED (
        SELECT 'outbox_' || s.slice AS slice, idem.relays_holding(s.slice) AS holders
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
           ARRAY(SELECT h.slice FROM held h WHERE r.name = ANY (h.holders) ORDER BY h.slice)
      FROM idem.relay_partition rp
      JOIN idem.relay r ON r.id = rp.relay AND r.dropped_at IS NULL
     CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p
     CROSS JOIN LATERAL idem.lag(p, r.partitions) w;
END;
COMMENT ON FUNCTION idem.relay_states() IS 'Returns the rows of the view idem.relays.';

CREATE VIEW idem.relays AS
    SELECT s.relay, s.partition, s.lag_messages, s.lag_seconds, s.leased_until, s.last_step_at,
           s.delayed, s.parked, s.blocks
      FROM idem.relay_states() s;
COMMENT ON VIEW idem.relays IS
    'The backlog of each relay, and the slices of the outbox that it keeps from being truncated.';

CREATE VIEW idem.parked AS
    SELECT r.name AS relay,
           k.partition,
           k.seq,
           (k.effect).message_id,
           (k.effect).topic,
           (k.effect).key,
           (k.effect).type,
           k.parked_at,
           k.error,
           (k.effect).recorded_at
      FROM idem.parked_effect k JOIN idem.relay r ON r.id = k.relay;
COMMENT ON VIEW idem.parked IS
    'The effects that relays have parked, with the error and without payloads and headers: see '
    'idem_relay_unpark and idem_relay_discard.';

CREATE VIEW idem.rings AS
    SELECT r.name AS ring,
           s.slice,
           CASE (s.slice - r.current + 4) % 4
               WHEN 0 THEN 'current'
               WHEN 1 THEN CASE WHEN r.emptying THEN 'emptying'
                                WHEN r.opening THEN 'opening'
                                ELSE 'next' END
               ELSE 'sealed'
           END AS state,
           pg_catalog.pg_stat_get_live_tuples(idem.slice_table(r.name, s.slice)) AS rows_estimate,
           (SELECT sum(pg_catalog.pg_total_relation_size(t.slice))
              FROM pg_catalog.unnest(idem.slice_tables(r.name, s.slice)) AS t (slice))::bigint
               AS bytes,
           CASE WHEN (s.slice - r.current + 4) % 4 <> 1 AND r.started[s.slice + 1] > '0'
                THEN idem.ran() - r.started[s.slice + 1] END AS age,
           r.retention,
           r.turns,
           (SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.turned_at AS turned_at,
           coalesce((SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.remembers_since,
                    '-infinity') AS remembers_since
      FROM idem.ring r
     CROSS JOIN pg_catalog.generate_series(0, 3) AS s (slice)
     ORDER BY r.id, s.slice;
COMMENT ON VIEW idem.rings IS
    'The slices of each ring: state, number of rows (an estimate from the statistics), bytes '
    '(with the external calls that belong to the claims) and age.';

CREATE VIEW idem.stats AS
    SELECT s.name, s.value FROM idem.counters() AS s;
COMMENT ON VIEW idem.stats IS
    'Counters of this database since the server started. They count what committed transactions '
    'did, including savepoints that these transactions rolled back. Empty if the library is not '
    'preloaded.';

-- Only the current table is valid.
CREATE VIEW idem.pending AS
    SELECT p.* FROM idem.pending_0 p
     WHERE (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1) = 0
    UNION ALL
    SELECT p.* FROM idem.pending_1 p
     WHERE (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1) = 1;
COMMENT ON VIEW idem.pending IS
    'The pending messages: identities that are not done. state: r ready, l leased, w waiting for '
    'a retry, d dead.';

CREATE VIEW idem.leases AS
    SELECT d.name AS destination,
           COALESCE(p.id, p.key::text) AS id,
           p.token,
           p.attempt,
           p.due_at AS until,
           p.payload_slice IS NOT NULL AS received
      FROM idem.pending p JOIN idem.destination d ON d.id = p.destination
     WHERE p.state = 'l' AND p.due_at > clock_timestamp();
COMMENT ON VIEW idem.leases IS
    'The messages that are leased now, and until when. received: true if the message is in the '
    'durable inbox, false if it is at its broker.';

CREATE VIEW idem.waiting_messages AS
    SELECT d.name AS destination,
           count(*) FILTER (WHERE NOT (p.state = 'l' AND p.due_at > clock_timestamp())) AS waiting,
           count(*) FILTER (WHERE p.due_at <= clock_timestamp()) AS due,
           count(*) FILTER (WHERE p.state = 'l' AND p.due_at > clock_timestamp()) AS leased,
           count(*) FILTER (WHERE p.state = 'w' AND p.due_at > clock_timestamp()) AS resting,
           min(p.received_at) AS oldest,
           min(p.due_at) AS next_due
      FROM idem.pending p JOIN idem.destination d ON d.id = p.destination
     WHERE p.payload_slice IS NOT NULL
     GROUP BY d.name;
COMMENT ON VIEW idem.waiting_messages IS
    'The durable inbox by destination: how many messages wait, how many of these are due now or '
    'wait for a retry (resting), how many are leased, and when the oldest message was received.';

CREATE VIEW idem.dead_letters AS
    SELECT d.name AS destination,
           COALESCE(l.id, l.key::text) AS id,
           l.seq,
           l.died_at,
           l.received_at,
           l.attempt,
           l.order_key AS key,
           l.type,
           l.payload,
           l.content_type,
           l.headers,
           l.traceparent,
           l.errors -> -1 ->> 'error' AS last_error,
           l.errors
      FROM idem.dead_letter l JOIN idem.destination d ON d.id = l.destination;
COMMENT ON VIEW idem.dead_letters IS
    'The dead letters: messages that have no attempt left or failed for good, with each error and '
    'its time. See idem_requeue, idem_discard and idem_forward.';
