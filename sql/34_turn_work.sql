-- The turn of work. What is updated and deleted leaves dead rows, and under an old snapshot they stay: so what is alive is copied into the
-- other table, and work goes on there. It costs what is alive, and nothing for what is dead.

CREATE FUNCTION idem.turn_work() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    turn idem.work_turn;
    next integer;
BEGIN
    SELECT * INTO turn FROM idem.work_turn t WHERE t.id = 1;
    IF NOT idem.work_is_large(turn) THEN
        RETURN false;
    END IF;
    -- In the order in which everybody locks them. Whoever writes work holds both to the end of his transaction, so nothing is
    -- in the making now, and nothing that he deleted is copied.
    LOCK TABLE idem.work_0, idem.work_1 IN ACCESS EXCLUSIVE MODE;
    SELECT * INTO turn FROM idem.work_turn t WHERE t.id = 1;
    IF NOT idem.work_is_large(turn) THEN
        RETURN false;
    END IF;
    next := 1 - turn.current;
    -- The table that is left stays as it is until the next turn: TRUNCATE hides rows from older snapshots, and a dump that
    -- began before must find the work in one of the two.
    EXECUTE format('TRUNCATE idem.work_%s', next);
    -- A lease whose message has not come back for longer than any claim is kept is forgotten as a claim would be: nobody will end it.
    EXECUTE format('INSERT INTO idem.work_%s SELECT w.* FROM idem.work_%s w WHERE w.body IS NOT NULL OR w.due_at >= $1', next, turn.current)
      USING clock_timestamp() - (SELECT max(r.retention) FROM idem.ring r WHERE r.name <> 'outbox');
    UPDATE idem.work_turn t
       SET current = next, bytes = pg_relation_size(format('idem.work_%s', next)::regclass)
     WHERE t.id = 1;
    RETURN true;
EXCEPTION
    -- Whoever waits for this lock holds up everybody behind: it is asked for again later.
    WHEN lock_not_available THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION idem.turn_work() IS 'Copies what is alive into the other table of work and goes on there, when the current one is large; false when it is not, or somebody is at work for too long.';

CREATE FUNCTION idem.work_is_large(turn idem.work_turn) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN pg_catalog.pg_relation_size(pg_catalog.format('idem.work_%s', (turn).current)::pg_catalog.regclass)
       OPERATOR(pg_catalog.>) greatest(4 OPERATOR(pg_catalog.*) 1024 OPERATOR(pg_catalog.*) 1024, 3 OPERATOR(pg_catalog.*) (turn).bytes);
COMMENT ON FUNCTION idem.work_is_large(idem.work_turn) IS 'Whether it is time for a turn: small enough to stay in memory, rare enough not to be felt.';
