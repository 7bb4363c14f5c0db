-- Relays come, go, and are put right after a restore.

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
    END IF;
    seq_now := idem.last_outbox_seq();
    INSERT INTO idem.relay (name, partitions, start_snapshot, start_floor)
    VALUES (idem_create_relay.name, idem_create_relay.partitions,
            CASE WHEN from_oldest THEN '1:1:' ELSE idem.full_snapshot() END,
            CASE WHEN from_oldest THEN 0 ELSE seq_now END)
    RETURNING id INTO new_id;
    INSERT INTO idem.relay_partition (relay, partition) SELECT new_id, n FROM generate_series(0, idem_create_relay.partitions - 1) n;
EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'relay "%" exists already', name
            USING ERRCODE = 'duplicate_object', HINT = 'To change its partitions let it drain, drop it and create it again.';
END
$$;
COMMENT ON FUNCTION idem_create_relay(text, integer, boolean) IS 'A new relay: it sees every effect that is recorded from now on, or from the oldest that is kept. Partitions keep the order of a key. Errors: 22004, 22023, 42710, 25006.';

CREATE FUNCTION idem_drop_relay(name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this idem.relay := idem.check_relay(idem_drop_relay.name, 0);
BEGIN
    -- The row of the relay that CREATE EXTENSION makes stays: a restore would bring that relay back otherwise.
    IF this.id = 1 THEN
        UPDATE idem.relay r SET dropped_at = now() WHERE r.id = this.id;
    END IF;
    DELETE FROM idem.relay r WHERE r.id <> 1 AND (r.id = this.id OR r.dropped_at IS NOT NULL);
    DELETE FROM idem.relay_partition p WHERE p.relay = this.id;
    DELETE FROM idem.delayed d WHERE d.relay = this.id;
    DELETE FROM idem.parked_effect k WHERE k.relay = this.id;
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
    seq_now := idem.last_outbox_seq();
    here := idem.full_snapshot();
    FOR part IN
        SELECT r AS relay, rp.partition FROM idem.relay_partition rp JOIN idem.relay r ON r.id = rp.relay
         WHERE r.dropped_at IS NULL ORDER BY r.id, rp.partition
    LOOP
        p := idem.progress_of(part.relay, part.partition);
        -- Producers have worked since the restore, and their young ids look delivered: their numbers, which go on where
        -- they stood, tell them apart. What was acknowledged last may come again.
        INSERT INTO idem.delayed (relay, partition, due_at, effect, seq)
        SELECT (part.relay).id, part.partition, greatest(o.deliver_after, now()), o, o.seq
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
