-- Trigger functions of several tables.

-- CREATE EXTENSION inserts the first state, and pg_restore inserts the state of the dump. This
-- trigger lets the later row replace the earlier row.
CREATE FUNCTION idem.replace_row_by_id() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE pg_catalog.format('DELETE FROM %I.%I WHERE id = $1', TG_TABLE_SCHEMA, TG_TABLE_NAME)
      USING NEW.id;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.replace_row_by_id() IS
    'Trigger function: deletes the row with the id of the new row, so that pg_restore replaces '
    'the rows that CREATE EXTENSION inserted.';

-- A dump of version 0.2.0 has four slices for each ring. The new slices are empty, so they become
-- the oldest sealed slices: the next rotations remove them first. They get the times of the slice
-- that was the oldest, so that the ring remembers and the outbox keeps what they did before.
CREATE FUNCTION idem.add_slices() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_slices int2[] := ARRAY(SELECT n FROM unnest(idem.slice_numbers(NEW.id)) n
                                WHERE n <> ALL (NEW.slices) ORDER BY n);
    count      integer := cardinality(new_slices);
    oldest     integer := NEW.slices[3] + 1;
BEGIN
    NEW.slices  := NEW.slices[:2] || new_slices || NEW.slices[3:];
    NEW.opened  := NEW.opened || array_fill(NEW.opened[oldest], ARRAY[count]);
    NEW.started := NEW.started || array_fill(NEW.started[oldest], ARRAY[count]);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION idem.add_slices() IS
    'Trigger function: adds the slices that a ring does not have, because its row was written by '
    'an earlier version.';

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
