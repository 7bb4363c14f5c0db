-- Trigger functions of several tables.

CREATE FUNCTION idem.note_load() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM idem.record_load(TG_RELID);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.note_load() IS
    'Trigger function: records that a restore loads the table.';

-- CREATE EXTENSION inserts the first state, and pg_restore inserts the state of the dump. This
-- trigger lets the later row replace the earlier row.
CREATE FUNCTION idem.replace_row_by_id() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DELETE FROM %I.%I WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME)
      USING NEW.id;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_row_by_id() IS
    'Trigger function: deletes the row with the id of the new row, so that pg_restore replaces '
    'the rows that CREATE EXTENSION inserted.';

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
