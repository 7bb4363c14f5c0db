-- The tables with state: what a dump contains, and the triggers that several tables have. Families
-- of numbered tables are registered for the dump where they are created. Triggers that only one
-- table has are with that table.
--
-- ENABLE ALWAYS: the triggers also fire in a session with session_replication_role = replica.
-- Without publish, a change by such a session would send no invalidation, and backends would keep
-- the old state.

-- ORDER BY id restores the relay with id 1 first. It replaces the relay that CREATE EXTENSION has
-- inserted, before another relay with the same name is restored.
SELECT pg_catalog.pg_extension_config_dump('idem.relay', 'ORDER BY id');
DO $$
DECLARE
    watched pg_catalog.regclass;
BEGIN
    FOREACH watched IN ARRAY '{idem.installation, idem.clock, idem.destination, idem.ring,
                               idem.outbox_seq, idem.pending_seq, idem.lease_token_seq,
                               idem.pending_rotation, idem.payload_rotation, idem.dead_letter,
                               idem.retry_policy, idem.relay_id_seq, idem.progress_pos_seq,
                               idem.relay_partition, idem.delayed, idem.parked_effect
                              }'::pg_catalog.regclass[]
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(watched, '');
    END LOOP;
    FOREACH watched IN ARRAY '{idem.installation, idem.clock, idem.ring, idem.pending_rotation,
                               idem.payload_rotation, idem.relay}'::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TRIGGER replace_row BEFORE INSERT ON %1$s
                FOR EACH ROW EXECUTE FUNCTION idem.replace_row_by_id();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER replace_row;
            $ddl$, watched);
    END LOOP;
    FOREACH watched IN ARRAY '{idem.installation, idem.loaded_table, idem.destination, idem.ring,
                               idem.pending_rotation}'::pg_catalog.regclass[]
    LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TRIGGER publish AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION idem.publish();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER publish;
            $ddl$, watched);
    END LOOP;
    -- Each table that a dump contains notes its load: see sql/internal/restore.sql. The trigger
    -- costs claims nothing, because they insert without triggers. A trigger for each row would be
    -- slow.
    FOR watched IN
        SELECT c.oid
          FROM pg_catalog.pg_extension e, pg_catalog.unnest(e.extconfig) AS o (oid)
          JOIN pg_catalog.pg_class c USING (oid)
         WHERE e.extname OPERATOR(pg_catalog.=) 'idem' AND c.relkind OPERATOR(pg_catalog.=) 'r'
    LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE TRIGGER note_load BEFORE INSERT ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION idem.note_load();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER note_load;
            $ddl$, watched);
    END LOOP;
END
$$;
