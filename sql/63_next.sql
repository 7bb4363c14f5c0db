-- The durable inbox: who is next.
--
-- Due messages are walked along the index in the order (due_at, seq), and what others hold is passed over. A message waits for an earlier one
-- of its key. Messages with keys are handed out by one session of a destination at a time: of two messages of a key, each of which
-- another session is about to take, neither would see the other. Those without keys need no such turn.
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
    IF idem.enter_work() = 0 THEN
        SELECT w.due_at INTO due FROM idem.work_0 w
         WHERE w.destination = d AND w.due_at > after AND w.body IS NOT NULL ORDER BY w.due_at LIMIT 1;
    ELSE
        SELECT w.due_at INTO due FROM idem.work_1 w
         WHERE w.destination = d AND w.due_at > after AND w.body IS NOT NULL ORDER BY w.due_at LIMIT 1;
    END IF;
    RETURN CASE WHEN due < 'infinity' THEN extract(epoch FROM due - epoch) * 1000000 END;
END
$$;
COMMENT ON FUNCTION idem.first_due(text, bigint) IS 'When the first received message is due that is due after that moment, in microseconds since 2000; null when there is none. Errors: 22004, 22023, 25000, 25006.';

CREATE TYPE idem.handed_out AS (
    seq          bigint,
    key          uuid,
    id           text,
    order_key    text,
    attempt      integer,
    received_at  timestamptz,
    errors       jsonb,
    payload      bytea,
    content_type text,
    type         text,
    headers      jsonb,
    traceparent  text
);
COMMENT ON TYPE idem.handed_out IS 'A message with what it carries.';

DO $make$
DECLARE
    slice integer;
BEGIN
    FOR slice IN 0 .. 1 LOOP
        EXECUTE pg_catalog.format($ddl$
            -- A look without any lock: what it overlooks is there for the next look.
            CREATE FUNCTION idem.peek_%1$s(
                destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer,
                OUT found boolean, OUT keyed boolean, OUT worn boolean, OUT first timestamptz)
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                SELECT count(*) > 0, bool_or(w.order_key IS NOT NULL), bool_or(w.attempt >= peek_%1$s.max_attempts), min(w.due_at)
                  INTO found, keyed, worn, first
                  FROM (SELECT x.order_key, x.attempt, x.due_at FROM idem.work_%1$s x
                         WHERE x.destination = peek_%1$s.destination AND x.due_at >= low AND x.due_at <= here AND x.body IS NOT NULL
                         ORDER BY x.due_at, x.seq LIMIT at_most) w;
            END
            $$;
            COMMENT ON FUNCTION idem.peek_%1$s(integer, timestamptz, timestamptz, integer, integer) IS 'Whether messages are due, and among the first: whether some have keys, and whether some have used up their attempts.';

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
                destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer, token bigint, until timestamptz
            ) RETURNS SETOF idem.handed_out
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                RETURN QUERY
                WITH due AS MATERIALIZED (
                    SELECT w.ctid AS place, w.due_at
                      FROM idem.work_%1$s w
                     WHERE w.destination = take_%1$s.destination AND w.due_at >= low AND w.due_at <= here AND w.body IS NOT NULL
                       AND w.order_key IS NULL AND w.attempt < take_%1$s.max_attempts
                     ORDER BY w.due_at, w.seq LIMIT at_most FOR UPDATE SKIP LOCKED
                ), taken AS (
                    UPDATE idem.work_%1$s w
                       SET token = take_%1$s.token, due_at = until, attempt = w.attempt + 1, leased = true,
                           errors = CASE WHEN w.leased THEN idem.noted(w.errors, w.attempt, 'the lease ran out') ELSE w.errors END
                      FROM due
                     WHERE w.ctid = due.place
                    RETURNING w.*, due.due_at AS was_due_at
                )
                SELECT t.seq, t.key, t.id, t.order_key, t.attempt, t.received_at, t.errors, b.payload, b.content_type, b.type, b.headers, b.traceparent
                  FROM taken t LEFT JOIN idem.body_row b ON b.slice = t.body AND b.seq = t.seq
                 ORDER BY t.was_due_at, t.seq;
            END
            $$;
            COMMENT ON FUNCTION idem.take_%1$s(integer, timestamptz, timestamptz, integer, integer, bigint, timestamptz) IS 'Leases the first messages without a key that are due.';

            -- The caller has the turn of the destination: nobody else hands out messages with keys.
            CREATE FUNCTION idem.take_places_%1$s(places tid[], seqs bigint[], here timestamptz, token bigint, until timestamptz) RETURNS SETOF idem.handed_out
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                RETURN QUERY
                WITH due AS MATERIALIZED (
                    SELECT w.ctid AS place, w.due_at
                      FROM idem.work_%1$s w
                     WHERE w.ctid = ANY (places) AND w.seq = ANY (seqs) AND w.due_at <= here
                       FOR UPDATE SKIP LOCKED
                ), taken AS (
                    UPDATE idem.work_%1$s w
                       SET token = take_places_%1$s.token, due_at = until, attempt = w.attempt + 1, leased = true,
                           errors = CASE WHEN w.leased THEN idem.noted(w.errors, w.attempt, 'the lease ran out') ELSE w.errors END
                      FROM due
                     WHERE w.ctid = due.place
                    RETURNING w.*, due.due_at AS was_due_at
                )
                SELECT t.seq, t.key, t.id, t.order_key, t.attempt, t.received_at, t.errors, b.payload, b.content_type, b.type, b.headers, b.traceparent
                  FROM taken t LEFT JOIN idem.body_row b ON b.slice = t.body AND b.seq = t.seq
                 ORDER BY t.was_due_at, t.seq;
            END
            $$;
            COMMENT ON FUNCTION idem.take_places_%1$s(tid[], bigint[], timestamptz, bigint, timestamptz) IS 'Leases those of the messages in these places that nobody has locked.';

            -- Earlier ones of a key are in the way when they have been tried or are due; a later one only while it is held.
            CREATE FUNCTION idem.free_to_go_%1$s(
                destination integer, low timestamptz, here timestamptz, at_most integer, max_attempts integer, window_rows integer,
                OUT places tid[], OUT seqs bigint[], OUT complete boolean)
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
            AS $$
            BEGIN
                WITH head AS MATERIALIZED (
                    SELECT w.ctid AS place, w.seq, w.due_at, w.order_key, w.attempt, w.body
                      FROM idem.work_%1$s w
                     WHERE w.destination = free_to_go_%1$s.destination AND w.due_at >= low AND w.due_at <= here AND w.body IS NOT NULL
                     ORDER BY w.due_at, w.seq LIMIT window_rows
                ), free AS (
                    SELECT h.place, h.seq FROM head h
                     WHERE h.attempt < free_to_go_%1$s.max_attempts
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
            $ddl$, slice);
    END LOOP;
END
$make$;

-- The turn of a destination is its row, which nobody else locks for long: a message with a key is handed out by one session at a time.
CREATE FUNCTION idem.take_with_keys(
    slice integer, destination integer, low timestamptz, at_most integer, max_attempts integer, lease interval, token bigint
) RETURNS SETOF idem.handed_out
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here   timestamptz;
    places tid[];
    seqs   bigint[];
    done   boolean;
    worn   boolean;
BEGIN
    PERFORM 1 FROM idem.destination d WHERE d.id = take_with_keys.destination FOR NO KEY UPDATE;
    here := clock_timestamp();
    IF slice = 0 THEN
        SELECT f.places, f.seqs, f.complete INTO places, seqs, done
          FROM idem.free_to_go_0(destination, low, here, at_most, max_attempts, 10 * at_most + 500) f;
        IF places IS NULL AND NOT done THEN
            SELECT h.places, h.seqs, h.worn INTO places, seqs, worn FROM idem.heads_of_keys_0(destination, here, at_most, max_attempts) h;
            IF worn THEN
                PERFORM idem.bury_0(destination, '-infinity', here, 1000, max_attempts);
            END IF;
        END IF;
        RETURN QUERY SELECT * FROM idem.take_places_0(places, seqs, here, token, here + lease);
        IF NOT FOUND AND NOT done THEN
            RETURN QUERY SELECT * FROM idem.take_0(destination, low, here, at_most, max_attempts, token, here + lease);
        END IF;
    ELSE
        SELECT f.places, f.seqs, f.complete INTO places, seqs, done
          FROM idem.free_to_go_1(destination, low, here, at_most, max_attempts, 10 * at_most + 500) f;
        IF places IS NULL AND NOT done THEN
            SELECT h.places, h.seqs, h.worn INTO places, seqs, worn FROM idem.heads_of_keys_1(destination, here, at_most, max_attempts) h;
            IF worn THEN
                PERFORM idem.bury_1(destination, '-infinity', here, 1000, max_attempts);
            END IF;
        END IF;
        RETURN QUERY SELECT * FROM idem.take_places_1(places, seqs, here, token, here + lease);
        IF NOT FOUND AND NOT done THEN
            RETURN QUERY SELECT * FROM idem.take_1(destination, low, here, at_most, max_attempts, token, here + lease);
        END IF;
    END IF;
END
$$;
COMMENT ON FUNCTION idem.take_with_keys(integer, integer, timestamptz, integer, integer, interval, bigint) IS 'Leases the first messages that are due, each the first of its key.';

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
    d            integer;
    slice        integer;
    here         timestamptz;
    look         record;
    attempts     integer;
    this         bigint;
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
    END IF;
    slice := idem.enter_work();
    attempts := (SELECT max_attempts FROM idem.policy_of(d));
    here := clock_timestamp();
    -- Locking a row draws a transaction id and writes to the log: not for a look that finds nothing.
    IF slice = 0 THEN
        SELECT * INTO look FROM idem.peek_0(d, '-infinity', here, max_messages, attempts);
    ELSE
        SELECT * INTO look FROM idem.peek_1(d, '-infinity', here, max_messages, attempts);
    END IF;
    IF NOT look.found THEN
        RETURN;
    END IF;
    IF look.worn THEN
        IF slice = 0 THEN
            PERFORM idem.bury_0(d, look.first, here, max_messages, attempts);
        ELSE
            PERFORM idem.bury_1(d, look.first, here, max_messages, attempts);
        END IF;
    END IF;
    this := nextval('idem.work_token_seq');
    IF look.keyed THEN
        RETURN QUERY
            SELECT this, t.seq, coalesce(t.id, t.key::text), t.order_key, t.type, t.payload, t.content_type, t.headers, t.traceparent,
                   t.attempt, t.received_at, t.errors -> -1 ->> 'error'
              FROM idem.take_with_keys(slice, d, look.first, max_messages, attempts, lease, this) t;
    ELSIF slice = 0 THEN
        RETURN QUERY
            SELECT this, t.seq, coalesce(t.id, t.key::text), t.order_key, t.type, t.payload, t.content_type, t.headers, t.traceparent,
                   t.attempt, t.received_at, t.errors -> -1 ->> 'error'
              FROM idem.take_0(d, look.first, here, max_messages, attempts, this, here + lease) t;
    ELSE
        RETURN QUERY
            SELECT this, t.seq, coalesce(t.id, t.key::text), t.order_key, t.type, t.payload, t.content_type, t.headers, t.traceparent,
                   t.attempt, t.received_at, t.errors -> -1 ->> 'error'
              FROM idem.take_1(d, look.first, here, max_messages, attempts, this, here + lease) t;
    END IF;
END
$$;
COMMENT ON FUNCTION idem_next(text, integer, interval) IS 'Leases the next received messages of a destination that are due, in order; of one key only the first, and none while another is held or rests. Finish each with idem_complete, or with idem_try_claim inside the business transaction; or give it back with idem_release. What is not finished comes again after the lease, until its attempts are used up. Errors: 22004, 22023, 25000 (not READ COMMITTED), 25006.';
