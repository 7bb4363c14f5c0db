-- Creating and dropping relays, and repairing them after a restore.

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
    seq_now := idem.last_outbox_seq();
    INSERT INTO idem.relay (name, partitions, start_snapshot, start_floor)
    VALUES (idem_create_relay.name, idem_create_relay.partitions,
            CASE WHEN from_oldest THEN '1:1:' ELSE idem.full_snapshot() END,
            CASE WHEN from_oldest THEN 0 ELSE seq_now END)
    RETURNING id INTO new_id;
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
    'argument), 22023 (invalid argument), 42710 (the relay already exists), 25006 (standby or '
    'read-only transaction).';

CREATE FUNCTION idem_drop_relay(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_drop_relay.name, 0);
BEGIN
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
    'for it. Errors: 22004 (null argument), 42704 (no such relay), 25006 (standby or read-only '
    'transaction).';

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
    PERFORM idem.lock_partition(r.relay, r.partition)
       FROM (SELECT * FROM idem.relay_partition ORDER BY relay, partition) r;
    LOCK TABLE idem.outbox_0, idem.outbox_1, idem.outbox_2, idem.outbox_3 IN EXCLUSIVE MODE;
    seq_now := idem.last_outbox_seq();
    here := idem.full_snapshot();
    FOR part IN
        SELECT r AS relay, rp.partition
          FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- Effects that were recorded since the restore have low transaction ids and would be
        -- treated as delivered. Their sequence numbers continue after those of the dump, so the
        -- numbers identify them. The effects acknowledged last can be delivered again.
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
COMMENT ON FUNCTION idem_repair_relays() IS
    'Repairs the relays after a restore into a cluster with lower transaction ids. Stop producers '
    'and relays before. The effects that a relay has not acknowledged become its delayed effects, '
    'which are delivered first, and its cursor continues with the transaction ids of this '
    'cluster. Returns the number of these effects. Errors: 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction).';
