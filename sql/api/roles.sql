-- Granting and revoking the kinds of roles.

CREATE FUNCTION idem_grant(role text, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target CONSTANT regrole := idem.check_grant(role, kind);
    given  record;
BEGIN
    FOR given IN SELECT p.privilege, p.object FROM idem.privileges_of_kind(kind) p
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', given.privilege, given.object, target);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_grant(text, text) IS
    'Grants a role the privileges of a kind: consumer, receiver, relay, operator, monitor or '
    'admin. These are EXECUTE on its functions and SELECT on its views; no kind has privileges on '
    'tables. role: the name as it is in pg_roles, without quotes. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role text, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target regrole;
    taken  record;
BEGIN
    target := idem.check_grant(role, kind);
    -- If the role was not granted this kind, nothing is revoked: the role has its privileges from
    -- other kinds or from GRANT.
    IF NOT EXISTS (SELECT 1 FROM idem.kinds_of_role(target) held (kind)
                    WHERE held.kind = idem_revoke.kind) THEN
        RETURN;
    END IF;
    FOR taken IN
        SELECT p.privilege, p.object FROM idem.privileges_of_kind(idem_revoke.kind) p
        EXCEPT
        SELECT p.privilege, p.object
          FROM idem.kinds_of_role(target) other (kind), idem.privileges_of_kind(other.kind) p
         WHERE other.kind <> idem_revoke.kind
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s', taken.privilege, taken.object, target);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_revoke(text, text) IS
    'Revokes what idem_grant granted for a kind, except the privileges that another kind of the '
    'role needs. Does nothing if the role was not granted the kind. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 2BP01 (dependent privileges exist), 42704 (no such role).';
