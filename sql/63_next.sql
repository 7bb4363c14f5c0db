-- The durable inbox: who is next.
--
-- Due messages are walked along the index in the order (due_at, seq), and what others hold is passed over. A message waits for an earlier one
-- of its key. Messages with keys are handed out by one session of a destination at a time: of two messages of a key, each of which
-- another session is about to take, neither would see the other. Those without keys need no such turn. A message whose lease ran out may have
-- killed whoever had it: it goes alone.
--
-- The functions that walk are made twice, one for each table of work, so that their plans are made once.

CREATE FUNCTION idem.first_due(destination text, after_us bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    epoch constant timestamptz := '2000-01-01 00:00:00+00';
    d     integer;
    after timestamptz := CASE WHEN after_us < -200000000000000000 THEN '-infinity' ELSE epoch + after_us * interval '1 microsecond' END;
    due   timestamptz;
BEGIN
    PERFORM idem.check_work();
    d := idem.find_destination(first_due.destination);
    -- Whoever waits would keep the locks for as long, and work from turning: they go with the subtransaction.
    BEGIN
        IF idem.enter_work() = 0 THEN
            SELECT w.due_at INTO due FROM idem.work_0 w
             WHERE w.destination = d AND w.due_at > after AND w.body IS NOT NULL ORDER BY w.due_at LIMIT 1;
        ELSE
            SELECT w.due_at INTO due FROM idem.work_1 w
             WHERE w.destination = d AND w.due_at > after AND w.body IS NOT NULL ORDER BY w.due_at LIMIT 1;
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'ID000';
    EXCEPTION
        WHEN SQLSTATE 'ID000' THEN
            NULL;
    END;
    RETURN CASE WHEN due < 'infinity' THEN extract(epoch FROM due - epoch) * 1000000 END;
END
$$;
COMMENT ON FUNCTION idem.first_due(text, bigint) IS 'When the first received message is due that is due after that moment, in microseconds since 2000; null when there is none. Errors: 22004, 22023, 25000, 25006.';

CREATE TYPE idem.handed_out AS (
    token        bigint,
    seq          bigint,
    id           text,
    key          text,
    type         text,
    payload      bytea,
    content_type text,
    headers      jsonb,
    traceparent  text,
    attempt      integer,
    received_at  timestamptz,
    last_error   text
);
COMMENT ON TYPE idem.handed_out IS 'A message as idem_next answers it.';

CREATE FUNCTION idem.max_attempts_of(destination integer) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce((SELECT p.max_attempts FROM idem.retry_policy p WHERE p.destination = max_attempts_of.destination), 10);
END
$$;
COMMENT ON FUNCTION idem.max_attempts_of(integer) IS 'How many attempts a destination makes.';

DO $make$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 1 LOOP
        EXECUTE pg_catalog.format($ddl$
            -- Whoever had it last did not come back, nor did whoever had it before.
            CREATE FUNCTION idem.bury_%1$s(destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer) RETURNS void
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            DECLARE
                w idem.work_0;
            BEGIN
                FOR w IN
                    SELECT x.* FROM idem.work_%1$s x
                     WHERE x.destination = bury_%1$s.destination AND x.due_at >= low AND x.due_at <= here AND x.body IS NOT NULL
                       AND x.attempt >= bury_%1$s.max_attempts
                     ORDER BY x.due_at, x.seq LIMIT at_most FOR UPDATE SKIP LOCKED
                LOOP
                    w.errors := CASE WHEN w.leased THEN idem.noted(w.errors, w.attempt, 'the lease ran out') ELSE w.errors END;
                    PERFORM idem.die(%1$s, w);
                END LOOP;
            END
            $$;
            COMMENT ON FUNCTION idem.bury_%1$s(integer, timestamptz, timestamptz, integer, integer) IS 'Moves due messages whose attempts are used up to the dead letters.';

            CREATE FUNCTION idem.take_%1$s(
                destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer, lease interval, token bigint
            ) RETURNS SETOF idem.handed_out
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                RETURN QUERY
                WITH due AS MATERIALIZED (
                    SELECT w.ctid AS place, w.due_at
                      FROM idem.work_%1$s w
                     WHERE w.destination = take_%1$s.destination AND w.due_at >= low AND w.due_at <= here AND w.body IS NOT NULL
                       AND w.order_key IS NULL AND w.attempt < take_%1$s.max_attempts AND (at_most = 1 OR NOT w.leased)
                     ORDER BY w.due_at, w.seq LIMIT at_most FOR UPDATE SKIP LOCKED
                ), taken AS (
                    UPDATE idem.work_%1$s w
                       SET token = take_%1$s.token, due_at = here + lease, attempt = w.attempt + 1, leased = true,
                           errors = CASE WHEN w.leased THEN idem.noted(w.errors, w.attempt, 'the lease ran out') ELSE w.errors END
                      FROM due
                     WHERE w.ctid = due.place
                    RETURNING w.*, due.due_at AS was_due_at
                )
                SELECT t.token, t.seq, coalesce(t.id, t.key::text), t.order_key, b.type, b.payload, b.content_type, b.headers, b.traceparent,
                       t.attempt, t.received_at, t.errors -> -1 ->> 'error'
                  FROM taken t LEFT JOIN idem.body_row b ON b.slice = t.body AND b.seq = t.seq
                 ORDER BY t.was_due_at, t.seq;
            END
            $$;
            COMMENT ON FUNCTION idem.take_%1$s(integer, timestamptz, timestamptz, integer, integer, interval, bigint) IS 'Leases the first messages without a key that are due.';

            -- Earlier ones of a key are in the way when they have been tried or are due; a later one only while it is held.
            CREATE FUNCTION idem.free_to_go_%1$s(
                destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer, window_rows integer,
                OUT places tid[], OUT seqs bigint[], OUT complete boolean)
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                WITH head AS MATERIALIZED (
                    SELECT w.ctid AS place, w.seq, w.due_at, w.order_key, w.attempt, w.leased, w.body
                      FROM idem.work_%1$s w
                     WHERE w.destination = free_to_go_%1$s.destination AND w.due_at >= low AND w.due_at <= here AND w.body IS NOT NULL
                     ORDER BY w.due_at, w.seq LIMIT window_rows
                ), free AS (
                    SELECT h.place, h.seq
                      -- All in the window are due, so only the first of a key can be free.
                      FROM (SELECT x.*, x.order_key IS NULL OR x.seq = min(x.seq) OVER (PARTITION BY x.order_key) AS first FROM head x) h
                     WHERE h.first AND h.attempt < free_to_go_%1$s.max_attempts AND (at_most = 1 OR NOT h.leased)
                       AND (h.order_key IS NULL
                            OR NOT EXISTS (SELECT 1 FROM idem.work_%1$s e
                                            WHERE e.destination = free_to_go_%1$s.destination AND e.order_key = h.order_key
                                              AND NOT e.leased AND e.seq < h.seq
                                              AND e.due_at < 'infinity' AND (e.attempt > 0 OR e.due_at <= here))
                           AND NOT EXISTS (SELECT 1 FROM idem.work_%1$s l
                                            WHERE l.destination = free_to_go_%1$s.destination AND l.order_key = h.order_key
                                              AND l.leased AND (l.due_at > here OR l.seq < h.seq)))
                     ORDER BY h.due_at, h.seq LIMIT at_most
                )
                SELECT array_agg(f.place), array_agg(f.seq), (SELECT count(*) < window_rows FROM head) INTO places, seqs, complete FROM free f;
            END
            $$;
            COMMENT ON FUNCTION idem.free_to_go_%1$s(integer, timestamptz, timestamptz, integer, integer, integer) IS 'Among the first messages that are due, those that nothing of their key is in the way of. complete: none are due beyond.';

            -- When all the first wait for others of their keys: from key to key, however many messages wait behind each.
            CREATE FUNCTION idem.heads_of_keys_%1$s(
                destination integer, here timestamptz, at_most integer, max_attempts integer, OUT places tid[], OUT seqs bigint[], OUT worn boolean)
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                WITH RECURSIVE key (order_key) AS (
                    (SELECT w.order_key FROM idem.work_%1$s w
                      WHERE w.destination = heads_of_keys_%1$s.destination AND w.order_key IS NOT NULL
                      ORDER BY w.order_key LIMIT 1)
                    UNION ALL
                    SELECT (SELECT w.order_key FROM idem.work_%1$s w
                             WHERE w.destination = heads_of_keys_%1$s.destination AND w.order_key > k.order_key
                             ORDER BY w.order_key LIMIT 1)
                      FROM key k WHERE k.order_key IS NOT NULL
                ), free AS (
                    SELECT h.place, h.seq, h.attempt
                      FROM key k, LATERAL (
                          SELECT f.* FROM (
                              (SELECT w.ctid AS place, w.seq, w.due_at, w.attempt, w.body
                                 FROM idem.work_%1$s w
                                WHERE w.destination = heads_of_keys_%1$s.destination AND w.order_key = k.order_key
                                  AND NOT w.leased AND w.due_at < 'infinity' AND (w.attempt > 0 OR w.due_at <= here)
                                ORDER BY w.seq LIMIT 1)
                              UNION ALL
                              (SELECT w.ctid, w.seq, w.due_at, w.attempt, w.body
                                 FROM idem.work_%1$s w
                                WHERE w.destination = heads_of_keys_%1$s.destination AND w.order_key = k.order_key AND w.leased
                                ORDER BY w.seq LIMIT 1)) f
                           ORDER BY f.seq LIMIT 1) h
                     WHERE h.due_at <= here AND h.body IS NOT NULL
                       AND NOT EXISTS (SELECT 1 FROM idem.work_%1$s l
                                        WHERE l.destination = heads_of_keys_%1$s.destination AND l.order_key = k.order_key
                                          AND l.leased AND l.due_at > here)
                     LIMIT at_most
                )
                SELECT array_agg(f.place) FILTER (WHERE f.attempt < max_attempts), array_agg(f.seq) FILTER (WHERE f.attempt < max_attempts),
                       bool_or(f.attempt >= max_attempts)
                  INTO places, seqs, worn FROM free f;
            END
            $$;
            COMMENT ON FUNCTION idem.heads_of_keys_%1$s(integer, timestamptz, integer, integer) IS 'The first messages of their keys that are due and that nothing is in the way of; worn: some of these have used up their attempts.';
            -- The turn of a destination is its row, which nobody else locks for long.
            CREATE FUNCTION idem.take_with_keys_%1$s(
                destination integer, low timestamptz, at_most integer, max_attempts integer, lease interval, token bigint
            ) RETURNS SETOF idem.handed_out
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            DECLARE
                here timestamptz;
                free record;
                worn boolean;
            BEGIN
                PERFORM 1 FROM idem.destination d WHERE d.id = take_with_keys_%1$s.destination FOR NO KEY UPDATE;
                here := clock_timestamp();
                SELECT * INTO free FROM idem.free_to_go_%1$s(destination, low, here, at_most, max_attempts, 2 * at_most + 10);
                IF free.places IS NULL AND NOT free.complete THEN
                    SELECT * INTO free FROM idem.free_to_go_%1$s(destination, low, here, at_most, max_attempts, 10 * at_most + 500);
                END IF;
                IF free.places IS NULL AND NOT free.complete THEN
                    SELECT h.places, h.seqs, false, h.worn INTO free FROM idem.heads_of_keys_%1$s(destination, here, at_most, max_attempts) h;
                    IF free.worn THEN
                        PERFORM idem.bury_%1$s(destination, '-infinity', here, 1000, max_attempts);
                    END IF;
                    IF free.places IS NULL AND EXISTS (
                        SELECT 1 FROM idem.work_%1$s w WHERE w.destination = take_with_keys_%1$s.destination AND w.order_key IS NULL
                         ORDER BY w.leased, w.seq LIMIT 1)
                    THEN
                        RETURN QUERY SELECT * FROM idem.take_%1$s(destination, low, here, at_most, max_attempts, lease, token);
                    END IF;
                END IF;
                -- In these places, unless somebody has changed them since: who completes or gives back does not wait for this turn.
                RETURN QUERY
                WITH due AS MATERIALIZED (
                    SELECT w.ctid AS place, w.due_at
                      FROM idem.work_%1$s w
                     WHERE w.ctid = ANY (free.places) AND w.seq = ANY (free.seqs) AND w.due_at <= here
                       FOR UPDATE SKIP LOCKED
                ), taken AS (
                    UPDATE idem.work_%1$s w
                       SET token = take_with_keys_%1$s.token, due_at = here + lease, attempt = w.attempt + 1, leased = true,
                           errors = CASE WHEN w.leased THEN idem.noted(w.errors, w.attempt, 'the lease ran out') ELSE w.errors END
                      FROM due
                     WHERE w.ctid = due.place
                    RETURNING w.*, due.due_at AS was_due_at
                )
                SELECT t.token, t.seq, coalesce(t.id, t.key::text), t.order_key, b.type, b.payload, b.content_type, b.headers, b.traceparent,
                       t.attempt, t.received_at, t.errors -> -1 ->> 'error'
                  FROM taken t LEFT JOIN idem.body_row b ON b.slice = t.body AND b.seq = t.seq
                 ORDER BY t.was_due_at, t.seq;
            END
            $$;
            COMMENT ON FUNCTION idem.take_with_keys_%1$s(integer, timestamptz, integer, integer, interval, bigint) IS 'Leases the first messages that are due, each the first of its key.';

            CREATE FUNCTION idem.next_%1$s(destination integer, at_most integer, lease interval) RETURNS SETOF idem.handed_out
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            DECLARE
                here         timestamptz := clock_timestamp();
                low          timestamptz := idem.low_mark(destination);
                max_attempts integer := idem.max_attempts_of(destination);
                due          record;
                batch        integer;
            BEGIN
                -- Locking a row draws a transaction id and writes to the log: not for a look that finds nothing.
                LOOP
                    SELECT count(*) > 0 AS found, bool_or(w.order_key IS NOT NULL) AS keyed, bool_or(w.attempt >= max_attempts) AS worn,
                           bool_or(w.leased) AS suspect, (array_agg(w.leased))[1] AS suspect_first, min(w.due_at) AS first
                      INTO due
                      FROM (SELECT x.order_key, x.attempt, x.leased, x.due_at FROM idem.work_%1$s x
                             WHERE x.destination = next_%1$s.destination AND x.due_at >= low AND x.due_at <= here AND x.body IS NOT NULL
                             ORDER BY x.due_at, x.seq LIMIT at_most) w;
                    EXIT WHEN due.found OR low = '-infinity';
                    low := '-infinity';
                END LOOP;
                PERFORM idem.note_low(destination, due.first);
                IF due.found THEN
                    IF due.worn THEN
                        PERFORM idem.bury_%1$s(destination, due.first, here, at_most, max_attempts);
                    END IF;
                    -- Whoever had a message whose lease ran out may have died of it: it is handed out alone, so that it takes no other along.
                    FOREACH batch IN ARRAY CASE WHEN due.suspect_first THEN ARRAY[1] WHEN due.suspect THEN ARRAY[at_most, 1] ELSE ARRAY[at_most] END LOOP
                        IF due.keyed THEN
                            RETURN QUERY SELECT * FROM idem.take_with_keys_%1$s(destination, due.first, batch, max_attempts, lease, nextval('idem.work_token_seq'));
                        ELSE
                            RETURN QUERY SELECT * FROM idem.take_%1$s(destination, due.first, here, batch, max_attempts, lease, nextval('idem.work_token_seq'));
                        END IF;
                        EXIT WHEN FOUND;
                    END LOOP;
                END IF;
            END
            $$;
            COMMENT ON FUNCTION idem.next_%1$s(integer, integer, interval) IS 'What idem_next answers while this table of work counts.';
            $ddl$, slice);
    END LOOP;
END
$make$;

CREATE FUNCTION idem_next(destination text, max_messages integer DEFAULT 1, lease interval DEFAULT '30 seconds')
RETURNS TABLE (
    token        bigint,
    seq          bigint,
    id           text,
    key          text,
    type         text,
    payload      bytea,
    content_type text,
    headers      jsonb,
    traceparent  text,
    attempt      integer,
    received_at  timestamptz,
    last_error   text
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    d integer;
BEGIN
    IF max_messages IS NULL THEN
        RAISE EXCEPTION 'max_messages must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF max_messages NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_messages is %', max_messages
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must be between 1 and 10000.';
    END IF;
    PERFORM idem.check_lease(lease);
    PERFORM idem.check_work();
    d := idem.find_destination(idem_next.destination);
    IF d IS NULL THEN
        RETURN;
    ELSIF idem.enter_work() = 0 THEN
        RETURN QUERY SELECT * FROM idem.next_0(d, max_messages, lease);
    ELSE
        RETURN QUERY SELECT * FROM idem.next_1(d, max_messages, lease);
    END IF;
END
$$;
COMMENT ON FUNCTION idem_next(text, integer, interval) IS 'Leases the next received messages of a destination that are due, in order; of one key only the first, and none while another is held or rests; one whose lease ran out goes alone. Finish each with idem_complete, or with idem_try_claim inside the business transaction; or give it back with idem_release. What is not finished comes again after the lease, until its attempts are used up. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';
