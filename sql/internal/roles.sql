-- The kinds of roles: which kinds a role has, and which privileges each kind contains.

-- EXECUTE on one of these functions records that a role has a kind: see sql/schema/roles.sql.
-- PostgreSQL renames, drops and dumps these privileges together with the role.
DO $$
DECLARE
    kind text;
BEGIN
    FOR kind IN SELECT DISTINCT k.kind FROM idem.kind_of_role k LOOP
        EXECUTE pg_catalog.format($ddl$
            CREATE FUNCTION idem.granted_%1$s() RETURNS boolean
                LANGUAGE sql IMMUTABLE RETURN true;
            COMMENT ON FUNCTION idem.granted_%1$s() IS
                'EXECUTE records that the role was granted the kind %1$s.';
            $ddl$, kind);
    END LOOP;
END
$$;

CREATE FUNCTION idem.kinds_of_role(role regrole) RETURNS SETOF text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT DISTINCT k.kind
      FROM idem.kind_of_role k
      JOIN pg_proc f ON f.pronamespace = 'idem'::regnamespace AND f.proname = 'granted_' || k.kind
     CROSS JOIN LATERAL aclexplode(f.proacl) a
     WHERE a.grantee = role AND a.grantee <> f.proowner
$$;
COMMENT ON FUNCTION idem.kinds_of_role(regrole) IS
    'Returns the kinds that idem_grant granted to this role itself, without those of roles that '
    'it is a member of. The owner needs none.';

CREATE FUNCTION idem.privileges_of_kind(kind text) RETURNS TABLE (privilege text, object text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT 'USAGE', 'SCHEMA @extschema@'
    UNION ALL
    SELECT 'EXECUTE',
           CASE f.prokind WHEN 'p' THEN 'PROCEDURE ' ELSE 'FUNCTION ' END || f.oid::regprocedure
      FROM idem.kind_of_role k
      JOIN pg_proc f ON f.proname = k.may_call
      JOIN pg_depend e ON e.classid = 'pg_proc'::regclass AND e.objid = f.oid AND e.deptype = 'e'
                      AND e.refclassid = 'pg_extension'::regclass
      JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'idem'
     WHERE k.kind = privileges_of_kind.kind
    UNION ALL
    SELECT 'EXECUTE', format('FUNCTION idem.granted_%s()', privileges_of_kind.kind)
    UNION ALL
    SELECT 'USAGE', 'SCHEMA idem'
     WHERE EXISTS (SELECT 1 FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind)
    UNION ALL
    SELECT 'SELECT', 'TABLE idem.' || v.may_read
      FROM idem.view_of_kind v WHERE v.kind = privileges_of_kind.kind
    UNION ALL
    -- A view calls its functions with the privileges of the role that reads the view.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['waiting()', 'relay_states()', 'counters()', 'ran()', 'filter_states()',
                        'slice_table(text, integer)', 'slice_tables(text, integer)']) f (behind)
     WHERE privileges_of_kind.kind IN ('monitor', 'admin')
    UNION ALL
    SELECT 'EXECUTE', 'FUNCTION idem.claim_waits()'
     WHERE privileges_of_kind.kind IN ('operator', 'monitor', 'admin')
    UNION ALL
    -- idem_maintain runs with the privileges of its caller, because only such a procedure can
    -- commit.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['check_preloaded()', 'maintenance_steps()', 'maintain_step(text)',
                        'wait_at_fence(text)']) f (behind)
     WHERE privileges_of_kind.kind = 'admin'
$$;
COMMENT ON FUNCTION idem.privileges_of_kind(text) IS
    'Returns what idem_grant grants for a kind and idem_revoke revokes: privileges, and objects '
    'as GRANT names them.';

CREATE FUNCTION idem.check_grant(role text, kind text) RETURNS regrole
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target regrole;
BEGIN
    PERFORM idem.check_transaction('a function of roles');
    IF role IS NULL OR kind IS NULL THEN
        RAISE EXCEPTION 'role and kind must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF NOT EXISTS (SELECT 1 FROM idem.kind_of_role k WHERE k.kind = check_grant.kind) THEN
        RAISE EXCEPTION 'there is no kind "%"', kind
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The kinds are consumer, receiver, relay, operator, monitor and admin.';
    END IF;
    SELECT a.oid INTO target FROM pg_roles a WHERE a.rolname = role;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'role "%" does not exist', role
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it with CREATE ROLE, or write its name as it is in pg_roles: in '
                         'the same case and without quotes.';
    END IF;
    -- This lock serializes changes of privileges, because each change reads the kinds that the
    -- previous change left to the role.
    LOCK TABLE idem.kind_of_role IN SHARE ROW EXCLUSIVE MODE;
    RETURN target;
END
$$;
COMMENT ON FUNCTION idem.check_grant(text, text) IS
    'Checks the arguments of idem_grant and idem_revoke, serializes these functions, and returns '
    'the role. Errors: 22004, 22023, 25000, 25006, 42704.';
