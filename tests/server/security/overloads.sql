-- Traps that match a call better than the original does: overloads of the functions and operators
-- that the install script names. PostgreSQL prefers a function that needs no cast, also to a
-- function of pg_catalog, which it searches first. So a call executes a trap if its name is not
-- qualified and the original needs a cast, is polymorphic or is variadic.
--
-- A trap has the arguments of an original with one type replaced. More are not needed: the trap
-- accepts each call of the original with this type, and needs one cast less. If two traps match a
-- call equally well, the call fails as ambiguous.
--
-- The names are read from the install script, so a new name has traps too. The extension must be
-- installed in the schema evil, which gets the traps: its functions are originals, too. The traps
-- are written into the catalogs, because 16,000 CREATE OPERATOR in one transaction would fill the
-- lock table of the server.

-- Counts the calls. A rollback does not reset a sequence.
CREATE SEQUENCE public.trap_calls;

CREATE TEMPORARY TABLE install_script AS
SELECT regexp_replace(
           pg_read_file(format('%s/extension/idem--%s.sql', c.setting, x.extversion)),
           '--[^\n]*', '', 'g') AS body
  FROM pg_config c, pg_extension x
 WHERE c.name = 'SHAREDIR' AND x.extname = 'idem';

-- The types that the script names, the types of literals and of columns in pg_catalog, and their
-- arrays.
CREATE TEMPORARY TABLE replacement AS
SELECT unnest(ARRAY[t.oid, t.typarray]) AS type
  FROM pg_type t
 WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b' AND t.typcategory <> 'A'
   AND (t.typname IN ('bool', 'char', 'float8', 'int2', 'int4', 'int8', 'interval', 'name',
                      'numeric', 'oid', 'text')
        OR ARRAY[t.typname::text, format_type(t.oid, NULL)] && ARRAY(
            SELECT m[1] FROM install_script, regexp_matches(body, '[a-z_][a-z0-9_]*', 'g') m))
UNION
SELECT unnest('{aclitem[], oidvector, record}'::regtype[]);

-- Functions. "any" as the last type is VARIADIC "any", which stands for any number of arguments: it
-- is replaced too, and an argument before it.
CREATE TEMPORARY TABLE original AS
SELECT p.proname AS name, a.types, NULL::text[] AS names, p.proretset AS is_set,
       p.prorettype AS result, false AS is_own
  FROM (SELECT *, string_to_array(proargtypes::text, ' ')::oid[] AS types,
               '"any"'::regtype::oid AS any
          FROM pg_proc) p
 CROSS JOIN LATERAL (
    SELECT array_replace(p.types, p.any, 'anyelement'::regtype) WHERE p.provariadic <> p.any
    UNION ALL
    SELECT p.types WHERE p.provariadic = p.any
    UNION ALL
    SELECT p.types || p.any WHERE p.provariadic = p.any) a (types)
 WHERE p.pronamespace = 'pg_catalog'::regnamespace
   AND p.proname IN (SELECT m[1] FROM install_script,
                            regexp_matches(body, '([a-z_][a-z0-9_]*)\s*\(', 'g') m);
-- The functions of the extension that others call. A call can omit arguments that have a default:
-- the last ones, or one of them.
INSERT INTO original
SELECT DISTINCT p.proname, a.types, a.names, p.proretset, p.prorettype, true
  FROM (SELECT *, pronargs - pronargdefaults AS required, pronargs::integer AS most
          FROM pg_proc) p
 CROSS JOIN generate_series(p.required, p.most) AS last (i)
 CROSS JOIN generate_series(p.required + 1, p.most + 1) AS omitted (i)
 CROSS JOIN LATERAL (
    SELECT array_agg(a.type ORDER BY a.i) AS types,
           array_agg(p.proargnames[a.i] ORDER BY a.i) AS names
      FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, i)
     WHERE a.i <= last.i AND a.i <> omitted.i) a
 WHERE p.pronamespace = 'evil'::regnamespace AND a.types IS NOT NULL
   AND p.proname IN (SELECT m[1] FROM install_script,
                            regexp_matches(body, '@extschema@\.(\w+)\(', 'g') m);

-- The calls with one argument, by its name.
CREATE TEMPORARY TABLE named_call AS
SELECT DISTINCT m[1] AS name, m[2] AS argument
  FROM install_script, regexp_matches(body, '[^.\w](\w+)\(\s*(\w+)\s*=>', 'g') m;

CREATE TEMPORARY TABLE overload AS
SELECT o.name, t.types, t.names, o.is_set, o.result, r.type AS replaced
  FROM original o
 CROSS JOIN replacement r
 CROSS JOIN LATERAL (
    SELECT o.types[:i - 1] || r.type || o.types[i + 1:], o.names
      FROM generate_subscripts(o.types, 1) i
    UNION ALL
    SELECT ARRAY[r.type], ARRAY[n.argument] FROM named_call n WHERE n.name = o.name) t
       (types, names)
 WHERE NOT o.is_own OR r.type IN (SELECT unnest(types) FROM original WHERE is_own)
UNION ALL
SELECT o.name, o.types, o.names, o.is_set, o.result, 'text'::regtype FROM original o
 WHERE o.is_own;

-- Returns the result of a trap: that of the original, or the replaced type, or its element type.
CREATE FUNCTION pg_temp.result_of_trap(original oid, replaced oid) RETURNS oid LANGUAGE sql
RETURN (SELECT CASE WHEN o.typnamespace = r.typnamespace AND o.typtype <> 'p' THEN o.oid
                    WHEN r.typcategory = 'A' THEN r.typelem
                    ELSE r.oid END
          FROM pg_type o, pg_type r WHERE o.oid = original AND r.oid = replaced);

CREATE TEMPORARY TABLE operator AS
WITH original AS (
    SELECT o.oprname AS name, o.oprleft AS l, o.oprright AS r, o.oprresult AS result
      FROM pg_operator o
      JOIN install_script s ON strpos(s.body, o.oprname) > 0
           -- CASE, IN and LIKE use operators that the script does not name.
        OR o.oprname IN ('=', '<>') OR o.oprname ~ '~~'
     WHERE o.oprnamespace = 'pg_catalog'::regnamespace
       AND NOT EXISTS (SELECT FROM pg_type t
                        WHERE t.oid IN (o.oprleft, o.oprright)
                          AND t.typname !~ '^any(element|(compatible|nonarray|)array)'
                          AND t.oid NOT IN (SELECT type FROM replacement))
), overload AS (
    SELECT o.name, r.type AS l, o.r, o.result, r.type AS replaced
      FROM original o, replacement r WHERE o.l <> 0
    UNION ALL
    SELECT o.name, o.l, r.type, o.result, r.type FROM original o, replacement r
)
SELECT DISTINCT ON (o.name, o.l, o.r)
       o.name, o.l, o.r, pg_temp.result_of_trap(o.result, o.replaced) AS result,
       format('trap_%s', row_number() OVER ())::name AS function
  FROM overload o
 WHERE NOT EXISTS (SELECT FROM pg_operator p
                    WHERE (p.oprname, p.oprleft, p.oprright) = (o.name, o.l, o.r));

CREATE TEMPORARY TABLE trap AS
SELECT DISTINCT ON (o.name, a.types)
       o.name, a.types, o.names, o.is_set, pg_temp.result_of_trap(o.result, o.replaced) AS result,
       '"any"'::regtype = ANY (a.types) AS is_variadic, format('%s(%s)', o.name, a.text) AS label
  FROM overload o
 CROSS JOIN LATERAL (
    SELECT array_agg(b.type ORDER BY a.i), string_agg(format_type(b.type, NULL), ', ' ORDER BY a.i)
      FROM unnest(o.types) WITH ORDINALITY a (type, i)
     CROSS JOIN LATERAL (
        SELECT CASE WHEN a.type = '"any"'::regtype AND a.i < cardinality(o.types)
                    THEN 'anyelement'::regtype ELSE a.type END) b (type)) a (types, text)
 WHERE NOT EXISTS (
    SELECT FROM pg_proc p
     WHERE p.proname = o.name AND p.proargtypes::text = array_to_string(a.types, ' ')
       AND p.pronamespace IN ('pg_catalog'::regnamespace, 'evil'::regnamespace))
UNION ALL
SELECT o.function, array_remove(ARRAY[o.l, o.r], 0), NULL, false, o.result, false,
       format('operator %s(%s, %s)', o.name, format_type(o.l, NULL), format_type(o.r, NULL))
  FROM operator o;

-- PL/pgSQL has no VARIADIC "any". The function trigger_in of the server always fails.
INSERT INTO pg_proc (
    oid, proname, pronamespace, proowner, prolang, procost, prorows, provariadic, prosupport,
    prokind, prosecdef, proleakproof, proisstrict, proretset, provolatile, proparallel, pronargs,
    pronargdefaults, prorettype, proargtypes, proallargtypes, proargmodes, proargnames, prosrc)
SELECT pg_nextoid('pg_proc', 'oid', 'pg_proc_oid_index'), t.name, 'evil'::regnamespace,
       current_user::regrole, l.oid, 1, t.is_set::integer,
       CASE WHEN t.is_variadic THEN '"any"'::regtype ELSE 0 END, 0,
       'f', false, false, false, t.is_set, 'v', 'u', cardinality(t.types),
       0, t.result, array_to_string(t.types, ' ')::oidvector,
       CASE WHEN t.is_variadic THEN t.types END,
       CASE WHEN t.is_variadic
            THEN array_fill('i'::"char", ARRAY[cardinality(t.types) - 1]) || 'v'::"char" END,
       t.names,
       CASE WHEN t.is_variadic THEN 'trigger_in' ELSE format($$
           BEGIN
               PERFORM pg_catalog.nextval('public.trap_calls');
               RAISE EXCEPTION 'trap %% ran as %%', %L, current_user USING ERRCODE = 'EVIL0';
           END $$, t.label) END
  FROM trap t
  JOIN pg_language l ON l.lanname = CASE WHEN t.is_variadic THEN 'internal' ELSE 'plpgsql' END;

INSERT INTO pg_operator (
    oid, oprname, oprnamespace, oprowner, oprkind, oprcanmerge, oprcanhash, oprleft, oprright,
    oprresult, oprcom, oprnegate, oprcode, oprrest, oprjoin)
SELECT pg_nextoid('pg_operator', 'oid', 'pg_operator_oid_index'), o.name, 'evil'::regnamespace,
       current_user::regrole, CASE WHEN o.l = 0 THEN 'l' ELSE 'b' END, false, false, o.l, o.r,
       o.result, 0, 0, p.oid, 0, 0
  FROM operator o
  JOIN pg_proc p ON p.proname = o.function AND p.pronamespace = 'evil'::regnamespace;

-- The uses of traps by objects that are created after this script.
CREATE TABLE public.trap_object AS
SELECT 'pg_proc'::regclass AS classid, oid FROM pg_proc WHERE pronamespace = 'evil'::regnamespace
UNION ALL
SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace
UNION ALL
SELECT 'pg_type'::regclass, oid FROM pg_type WHERE typnamespace = 'evil'::regnamespace
UNION ALL
SELECT 'pg_class'::regclass, oid FROM pg_class WHERE relnamespace = 'evil'::regnamespace;
CREATE TABLE public.earlier_object AS SELECT DISTINCT d.classid, d.objid FROM pg_depend d;
CREATE VIEW public.captured AS
SELECT DISTINCT format('%s uses %s', pg_describe_object(d.classid, d.objid, 0),
                       pg_describe_object(d.refclassid, d.refobjid, 0)) AS use
  FROM pg_depend d
  JOIN public.trap_object t ON t.classid = d.refclassid AND t.oid = d.refobjid
 WHERE (d.classid, d.objid) NOT IN (SELECT e.classid, e.objid FROM public.earlier_object e);
