-- The views for operators.

DO $$
BEGIN
    EXECUTE pg_catalog.format($ddl$
        CREATE VIEW idem.inbox AS
            SELECT DISTINCT c.ring,
                   d.name AS destination,
                   COALESCE(c.id, c.key::text) AS id,
                   c.claimed_at,
                   c.fingerprint
              FROM (%s) c JOIN idem.destination d ON d.id = c.destination
        $ddl$,
        (SELECT pg_catalog.string_agg(
                    pg_catalog.format('SELECT %L AS ring, * FROM idem.inbox_%s_%s',
                                      r.name, r.name, s.number),
                    ' UNION ALL ' ORDER BY r.id, s.number)
           FROM idem.ring r, pg_catalog.unnest(r.slices) AS s (number)
          WHERE r.name OPERATOR(pg_catalog.<>) 'outbox'::text));
END
$$;
COMMENT ON VIEW idem.inbox IS
    'The claims, with readable ids. During a rotation a claim can be in two slices; the view '
    'shows it once.';

CREATE VIEW idem.outbox AS
    SELECT w.relay, w.partition, w.seq, w.message_id, w.topic, w.key, w.type,
           w.recorded_at, w.deliver_after, w.source_destination, w.replay
      FROM idem.waiting() w;
COMMENT ON VIEW idem.outbox IS
    'The effects that each relay has not acknowledged, without payloads and headers.';

CREATE VIEW idem.relays AS
    SELECT s.relay, s.partition, s.lag_messages, s.lag_seconds, s.leased_until, s.last_step_at,
           s.delayed, s.parked, s.blocks, s.waits_for
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
           s.slice::integer AS slice,
           CASE s.position
               WHEN 1 THEN 'current'
               WHEN 2 THEN CASE WHEN r.phase IN ('opening', 'emptying') THEN r.phase
                                ELSE 'next' END
               ELSE 'sealed'
           END AS state,
           pg_catalog.pg_stat_get_live_tuples(idem.slice_table(r.name, s.slice)) AS rows_estimate,
           (SELECT sum(pg_catalog.pg_total_relation_size(t.slice))
              FROM pg_catalog.unnest(idem.slice_tables(r.name, s.slice)) AS t (slice))::bigint
               AS bytes,
           CASE WHEN s.position <> 2 AND r.started[s.slice + 1] > '0'
                THEN idem.ran() - r.started[s.slice + 1] END AS age,
           CASE s.position WHEN 1 THEN r.segment::integer END AS segment,
           r.retention,
           r.rotations,
           (SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.rotated_at AS rotated_at,
           coalesce((SELECT c.zero_at FROM idem.clock c WHERE c.id = 1) + r.remembers_since,
                    '-infinity') AS remembers_since
      FROM idem.ring r
     CROSS JOIN pg_catalog.unnest(r.slices) WITH ORDINALITY AS s (slice, position)
     ORDER BY r.id, s.slice;
COMMENT ON VIEW idem.rings IS
    'The slices of each ring: state, number of rows (an estimate from the statistics), bytes '
    '(with the external calls that belong to the claims), age, and the present segment of the '
    'current slice, into which claims are inserted.';

CREATE VIEW idem.filters AS
    SELECT r.name AS ring, f.slice, f.status, f.reason, f.bytes, f.bits_per_claim,
           f.expected_false_positives, f.observed_false_positives, f.look_ups
      FROM idem.filter_states() f JOIN idem.ring r ON r.id = f.ring;
COMMENT ON VIEW idem.filters IS
    'The filter of each slice in which a claim can be. A claim reads a slice unless its filter is '
    'complete and excludes the claim. status: complete, building or none; reason: why it is not '
    'complete, or too small. expected_false_positives: the false-positive rate, computed from the '
    'bits; observed_false_positives: the rate of the look-ups since the filter was built. Filters '
    'are in shared memory: a dump, a standby and a server that has just started have none.';

CREATE VIEW idem.stats AS
    SELECT s.name, s.value FROM idem.counters() AS s;
COMMENT ON VIEW idem.stats IS
    'Counters of this database since the server started. They count what committed transactions '
    'did, including savepoints that these transactions rolled back.';

-- Only the current table is read, because the rows of the other table are outdated.
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

CREATE VIEW idem.waiting_claims AS
    SELECT w.* FROM idem.claim_waits() AS w;
COMMENT ON VIEW idem.waiting_claims IS
    'The sessions in a transaction with claims that wait for another transaction: usually for the '
    'claim of the same message, or for its lease or its pending row. since: when the wait began. '
    'blocked_by: the process that they wait for; null with blocker_gid for a prepared '
    'transaction. An INSERT of the application that waits for a unique key is shown too.';

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

CREATE VIEW idem.live_letter AS
    SELECT p.key, p.destination FROM idem.pending p WHERE p.state = 'd';
COMMENT ON VIEW idem.live_letter IS
    'The identities of the dead letters whose messages were not processed. A claim deletes the '
    'pending row.';

-- The number is idem.largest_payload(), which readers of the view may not execute.
CREATE VIEW idem.dead_letters AS
    SELECT d.name AS destination,
           COALESCE(l.id, l.key::text) AS id,
           l.seq,
           l.died_at,
           l.received_at,
           l.attempt,
           l.order_key AS key,
           l.type,
           CASE WHEN pg_catalog.octet_length(l.payload) <= 268435456 THEN l.payload END AS payload,
           l.content_type,
           l.headers,
           l.traceparent,
           l.errors -> -1 ->> 'error'::text AS last_error,
           l.errors,
           NOT EXISTS (SELECT FROM idem.live_letter v
                        WHERE v.key = l.key AND v.destination = l.destination) AS processed
      FROM idem.dead_letter l JOIN idem.destination d ON d.id = l.destination;
COMMENT ON VIEW idem.dead_letters IS
    'The dead letters: messages that have no attempt left or failed for good, with each error and '
    'its time. payload: null if it is too large to be returned. processed: the message was '
    'claimed after it became a dead letter, so it can only be discarded. See idem_requeue, '
    'idem_discard and idem_forward.';
