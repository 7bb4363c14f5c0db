-- The use of destinations.

CREATE FUNCTION idem.use_of_destination(number integer) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place record;
    used  boolean;
BEGIN
    -- Find the tables in the catalog: each table that refers to a destination has a column
    -- destination or source_destination, or a column effect with rows of the outbox.
    FOR place IN
        SELECT c.relname,
               CASE a.attname WHEN 'effect' THEN '(t.effect).source_destination'
                              ELSE format('t.%I', a.attname) END AS reference
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
         WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r'
           AND c.relname <> 'retry_policy'
           -- Skip the table of pending messages that is not current: its rows are outdated.
           AND c.oid <> idem.pending_table(
                            1 - (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1))
           AND (a.attname IN ('destination', 'source_destination') AND a.atttypid = 'int4'::regtype
                OR a.attname = 'effect' AND a.atttypid = 'idem.outbox_row'::regtype)
         ORDER BY pg_relation_size(c.oid)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM idem.%I t WHERE %s = $1)',
                       place.relname, place.reference)
           INTO used USING number;
        IF used THEN
            RETURN 'idem.' || place.relname;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.use_of_destination(integer) IS
    'Returns a table with a row that refers to the destination; null if there is none.';

CREATE FUNCTION idem.table_with_messages() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place text;
    used  boolean;
BEGIN
    FOR place IN
        SELECT 'idem.' || c.relname FROM pg_class c
         WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind = 'r'
           AND (c.relname ~ '^(inbox|call)_' OR c.relname = 'dead_letter'
                OR c.oid = idem.pending_table(
                               (SELECT r.current FROM idem.pending_rotation r WHERE r.id = 1)))
         ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', place) INTO used;
        IF used THEN
            RETURN place;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION idem.table_with_messages() IS
    'Returns a table that has a claim, an external call, a pending message or a dead letter; null '
    'if there is none.';
