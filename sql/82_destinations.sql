-- Removing destinations that are no longer used.

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
           -- The rows of the table that is not current are outdated.
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

CREATE FUNCTION idem_remove_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number integer;
    used   text;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'cannot remove a destination in a % transaction',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Remove it in a READ COMMITTED transaction: the current rows that refer '
                         'to it must be read.';
    ELSIF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot execute idem_remove_destination() in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF name IS NULL THEN
        RAISE EXCEPTION 'name must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the destination has % bytes', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It must have 1 to 255 bytes.';
    END IF;
    SELECT d.id INTO number FROM idem.destination d WHERE d.name = idem_remove_destination.name;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Check without the lock first, so that claims do not have to wait if the destination is in
    -- use.
    used := idem.use_of_destination(number);
    IF used IS NULL THEN
        PERFORM idem.lock_out_claims();
        used := idem.use_of_destination(number);
    END IF;
    IF used IS NOT NULL THEN
        RAISE EXCEPTION 'destination "%" is in use', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = format('A row of %s refers to it.', used),
                  HINT = 'Wait until its claims and effects are forgotten; process or discard its '
                         'messages.';
    END IF;
    DELETE FROM idem.retry_policy p WHERE p.destination = number;
    DELETE FROM idem.destination d WHERE d.id = number;
    PERFORM idem.invalidate('idem.destination'::regclass);
    RETURN true;
END
$$;
COMMENT ON FUNCTION idem_remove_destination(text) IS
    'Removes a destination and its retry policy. No claim, external call, effect, message or dead '
    'letter may refer to it. Returns false if there is no such destination. Blocks claims while '
    'it reads all slices. Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not '
    'READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the destination is in '
    'use), 55P03 (claims ran for more than 2 seconds).';

CREATE FUNCTION idem.destination_count() RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN (SELECT pg_catalog.count(*) FROM idem.destination);
COMMENT ON FUNCTION idem.destination_count() IS 'Returns the number of destinations.';
