-- The sequences. If a sequence falls behind the rows that it numbers, effects are not delivered,
-- progress is not found and messages change their order. Lease tokens need no check: a lease gets a
-- token above the earlier one of its message.

CREATE FUNCTION idem.sequences_behind() RETURNS TABLE (sequence regclass, used bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    s record;
BEGIN
    -- Read the rows before the sequence: they may get higher numbers afterwards.
    FOR s IN
        SELECT 'idem.outbox_seq'::regclass AS name,
               greatest(idem.highest_floor(), (SELECT max(o.seq) FROM idem.outbox_row o),
                        (SELECT max(k.seq) FROM idem.parked_effect k)) AS used
        UNION ALL
        SELECT 'idem.progress_pos_seq',
               (SELECT max(p.pos) FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
                 CROSS JOIN LATERAL idem.progress_of(r, rp.partition) p)
        UNION ALL
        SELECT 'idem.pending_seq', (SELECT max(b.seq) FROM idem.payload_row b)
    LOOP
        IF coalesce(pg_sequence_last_value(s.name), 0) < s.used THEN
            sequence := s.name;
            used := s.used;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem.sequences_behind() IS
    'Returns the sequences that are behind the rows that they number, with the highest number in '
    'use.';

CREATE FUNCTION idem.raise_sequences() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s record;
BEGIN
    FOR s IN SELECT * FROM idem.sequences_behind() LOOP
        -- The command changes nothing. Its lock excludes nextval until the end of the transaction:
        -- setval must not lower a sequence that others have raised.
        EXECUTE format('ALTER SEQUENCE %s OWNED BY NONE', s.sequence);
    END LOOP;
    PERFORM setval(b.sequence, b.used) FROM idem.sequences_behind() b;
END
$$;
COMMENT ON FUNCTION idem.raise_sequences() IS
    'Raises the sequences that are behind the rows that they number.';
