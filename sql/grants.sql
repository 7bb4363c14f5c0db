-- The privileges after CREATE EXTENSION.

-- Until idem_grant is called, only the owner has privileges. By default PostgreSQL grants EXECUTE
-- on functions to PUBLIC, and ALTER DEFAULT PRIVILEGES may grant more, also CREATE on the schema.
-- Both are revoked here. PUBLIC keeps USAGE on the row types of tables, which allows nothing
-- without a privilege on the table.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT m.what, m.name, a.grantee
          FROM (SELECT f.oid, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class,
                       CASE f.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END AS what,
                       f.oid::pg_catalog.regprocedure::text AS name, f.proowner AS owner,
                       coalesce(f.proacl, pg_catalog.acldefault('f', f.proowner)) AS acl
                  FROM pg_catalog.pg_proc f
                UNION ALL
                SELECT c.oid, 'pg_catalog.pg_class'::pg_catalog.regclass,
                       CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
                       c.oid::pg_catalog.regclass::text, c.relowner, c.relacl
                  FROM pg_catalog.pg_class c
                 WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,S}'::"char"[])
                UNION ALL
                SELECT n.oid, 'pg_catalog.pg_namespace'::pg_catalog.regclass, 'SCHEMA',
                       n.oid::pg_catalog.regnamespace::text, n.nspowner, n.nspacl
                  FROM pg_catalog.pg_namespace n
                UNION ALL
                SELECT t.oid, 'pg_catalog.pg_type'::pg_catalog.regclass, 'TYPE',
                       t.oid::pg_catalog.regtype::text, t.typowner,
                       coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner))
                  FROM pg_catalog.pg_type t
                  LEFT JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) t.typrelid
                 WHERE t.typtype OPERATOR(pg_catalog.=) 'e'::"char"
                    OR r.relkind OPERATOR(pg_catalog.=) 'c'::"char") m
          JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) m.class
                                     AND e.objid OPERATOR(pg_catalog.=) m.oid
                                     AND e.deptype OPERATOR(pg_catalog.=) 'e'
          JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) e.refobjid
                                        AND x.extname OPERATOR(pg_catalog.=) 'idem'
         CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) a
         WHERE a.grantee OPERATOR(pg_catalog.<>) m.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s', given.what, given.name,
                                  CASE WHEN given.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                                       ELSE given.grantee::pg_catalog.regrole::text END);
    END LOOP;
END
$$;
GRANT USAGE ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state TO PUBLIC;

-- The CHECK constraints of the pending messages call this function as the role that writes. Its
-- only effect is that claims look for pending messages.
GRANT EXECUTE ON FUNCTION idem.note_pending(bigint) TO PUBLIC;
