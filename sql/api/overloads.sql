-- A function with a uuid gets the comment of the function of the same name with a text.
DO $$
DECLARE
    pair record;
BEGIN
    FOR pair IN
        WITH of_idem AS (
            SELECT f.oid, f.proname, f.proargtypes[0] AS first_type
              FROM pg_catalog.pg_proc f
              JOIN pg_catalog.pg_depend e
                ON e.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
               AND e.objid OPERATOR(pg_catalog.=) f.oid
               AND e.deptype OPERATOR(pg_catalog.=) 'e'::"char"
              JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) e.refobjid
                                            AND x.extname OPERATOR(pg_catalog.=) 'idem'::name
             WHERE f.proargnames[1] OPERATOR(pg_catalog.=) 'id'::text
        )
        SELECT u.oid::pg_catalog.regprocedure::text AS name,
               pg_catalog.replace(pg_catalog.obj_description(t.oid, 'pg_proc'::name),
                                  'the hash of this id is', 'this id is') AS description
          FROM of_idem u JOIN of_idem t ON t.proname OPERATOR(pg_catalog.=) u.proname
         WHERE u.first_type OPERATOR(pg_catalog.=) 'uuid'::pg_catalog.regtype
           AND t.first_type OPERATOR(pg_catalog.=) 'text'::pg_catalog.regtype
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', pair.name, pair.description);
    END LOOP;
END
$$;
