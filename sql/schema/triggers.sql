-- Trigger functions of several tables.

CREATE FUNCTION idem.note_load() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO idem.loaded_table (name, tx) VALUES (TG_TABLE_NAME, pg_current_xact_id())
        ON CONFLICT DO NOTHING;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.note_load() IS
    'Trigger function: records that a restore loads the table.';

-- CREATE EXTENSION inserts the first state, and pg_restore inserts the state of the dump. This
-- trigger lets the later row replace the earlier row. Only a restore replaces a row.
CREATE FUNCTION idem.replace_row_by_id() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    replaced bigint;
BEGIN
    EXECUTE format('DELETE FROM %I.%I WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME)
      USING NEW.id;
    GET DIAGNOSTICS replaced = ROW_COUNT;
    IF replaced > 0 THEN
        INSERT INTO idem.loaded_table (name, tx) VALUES (TG_TABLE_NAME, pg_current_xact_id())
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_row_by_id() IS
    'Trigger function: deletes the row with the id of the new row, so that pg_restore replaces '
    'the rows that CREATE EXTENSION inserted, and records that a restore loads the table.';

CREATE FUNCTION idem.publish() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.invalidate(TG_RELID);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.publish() IS
    'Trigger function: makes every backend read the changed table again at its next claim.';
