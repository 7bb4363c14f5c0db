-- A schema of traps: functions, aggregates, operators, types and tables with the names of objects
-- in pg_catalog and idem. A function that looks up such a name in the search_path executes a trap.
-- The error of a trap names the role that executed it.

CREATE SCHEMA evil;
CREATE FUNCTION evil.never(trap text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'trap % ran as %', trap, current_user USING ERRCODE = 'EVIL0';
END $$;

DO $$
DECLARE
    f    record;
    body text := 'BEGIN RAISE EXCEPTION ''trap %% ran as %%'', %L, current_user '
                 'USING ERRCODE = ''EVIL0''; END';
BEGIN
    -- Functions and aggregates, with the signatures of the originals.
    FOR f IN
        SELECT p.oid, p.proname, format_type(p.prorettype, NULL) AS result,
               (SELECT string_agg(format_type(a, NULL), ', ' ORDER BY n)
                  FROM unnest(p.proargtypes) WITH ORDINALITY t (a, n)) AS arguments
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace
           AND NOT EXISTS (SELECT 1 FROM unnest(p.proargtypes || p.prorettype) a
                             JOIN pg_type t ON t.oid = a
                            WHERE t.typtype = 'p'
                              AND t.typname NOT IN ('anyelement', 'anyarray', 'anynonarray',
                                                    'anycompatible', 'anycompatiblearray', 'void'))
           AND NOT 'void'::regtype = ANY (p.proargtypes)
           -- A polymorphic result needs a polymorphic argument.
           AND (p.prorettype NOT IN (SELECT oid FROM pg_type WHERE typname LIKE 'any%')
                OR EXISTS (SELECT 1 FROM unnest(p.proargtypes) a JOIN pg_type t ON t.oid = a
                            WHERE t.typname LIKE 'any%'))
    LOOP
        EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L',
                       f.proname, f.arguments, f.result, format(body, f.proname));
    END LOOP;
    -- Functions that take any arguments: overloads that match better than the originals.
    FOR f IN
        SELECT n.name, a.arguments
          FROM unnest(ARRAY['format', 'concat', 'count', 'jsonb_build_object', 'to_json',
                            'pg_column_size', 'num_nulls', 'row_to_json']) n (name),
               unnest(ARRAY['text', 'text, text', 'text, text, text', 'text, integer',
                            'text, text, integer', 'text, regclass', 'text, regprocedure',
                            'text, text, regrole', 'text, text, text, regrole', 'text, interval',
                            'text, interval, regclass', 'text, timestamptz',
                            'text, bigint, text, text',
                            'bigint', 'uuid', 'jsonb', 'integer', 'boolean', 'timestamptz',
                            'xid8']) a (arguments)
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS text LANGUAGE plpgsql AS %L',
                           f.name, f.arguments, format(body, f.name));
        EXCEPTION WHEN duplicate_function THEN
            NULL;
        END;
    END LOOP;
    -- Operators.
    FOR f IN
        SELECT o.oid, o.oprname, format_type(o.oprleft, NULL) AS l,
               format_type(o.oprright, NULL) AS r, o.oprleft = 0 AS prefix,
               format_type(o.oprresult, NULL) AS result
          FROM pg_catalog.pg_operator o
         WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprresult <> 0
           AND NOT EXISTS (SELECT 1 FROM unnest(ARRAY[o.oprleft, o.oprright, o.oprresult]) a
                             JOIN pg_type t ON t.oid = a
                            WHERE t.typtype = 'p'
                              AND t.typname NOT IN ('anyelement', 'anyarray', 'anycompatible',
                                                    'anycompatiblearray'))
    LOOP
        EXECUTE format('CREATE FUNCTION evil.operator_%s(%s) RETURNS %s LANGUAGE plpgsql AS %L',
                       f.oid, CASE WHEN f.prefix THEN f.r ELSE f.l || ', ' || f.r END, f.result,
                       format(body, 'operator ' || f.oprname));
        EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.operator_%s, %s RIGHTARG = %s)',
                       f.oprname, f.oid,
                       CASE WHEN f.prefix THEN '' ELSE 'LEFTARG = ' || f.l || ',' END, f.r);
    END LOOP;
    -- Types.
    FOR f IN
        SELECT t.typname FROM pg_catalog.pg_type t
         WHERE t.typnamespace = 'pg_catalog'::regnamespace
           AND t.typname IN ('text', 'uuid', 'jsonb', 'json', 'bytea', 'name', 'oid', 'xid8',
                             'pg_snapshot', 'regclass', 'regprocedure', 'regrole', 'timestamptz',
                             'int2', 'int4', 'int8', 'bool', '_text')
    LOOP
        EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%I CHECK (evil.never(%L))',
                       f.typname, f.typname, 'type ' || f.typname);
    END LOOP;
END
$$;
CREATE TYPE evil.idem_outcome AS ENUM ('trapped');
CREATE TYPE evil.idem_lease_outcome AS ENUM ('trapped');
CREATE TYPE evil.idem_call_state AS ENUM ('trapped');
CREATE TYPE evil.idem_effect AS (trapped pg_catalog.text);

-- Tables and views: a read of any of them executes the trap.
DO $$
DECLARE
    f record;
BEGIN
    FOR f IN
        SELECT DISTINCT c.relname FROM pg_catalog.pg_class c
         WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'v')
            OR c.relname IN ('pg_proc', 'pg_depend', 'pg_extension', 'pg_roles', 'pg_class',
                             'pg_database', 'pg_locks', 'pg_stat_activity', 'pg_prepared_xacts')
    LOOP
        EXECUTE format('CREATE VIEW evil.%I AS SELECT evil.never(%L) AS id',
                       f.relname, 'relation ' || f.relname);
    END LOOP;
END
$$;
