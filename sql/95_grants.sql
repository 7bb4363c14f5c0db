-- The kinds of roles and their privileges. PUBLIC has no privileges. A role gets EXECUTE on the
-- functions and SELECT on the views of its kinds, and no privilege on a table.

CREATE TABLE idem.kind_of_role (
    kind      text NOT NULL,
    may_call  text NOT NULL,
    CONSTRAINT kind_of_role_pkey PRIMARY KEY (kind, may_call)
);
COMMENT ON TABLE idem.kind_of_role IS
    'The functions of each kind of role, by name, with all overloads: idem_grant grants EXECUTE '
    'on them.';
INSERT INTO idem.kind_of_role (kind, may_call) VALUES
    ('consumer', 'idem_try_claim'), ('consumer', 'idem_try_claim_batch'),
    ('consumer', 'idem_try_claim_uuid_batch'), ('consumer', 'idem_claim'),
    ('consumer', 'idem_claim_in_block'), ('consumer', 'idem_is_claimed'),
    ('consumer', 'idem_record_effects'), ('consumer', 'idem_try_record'),
    ('consumer', 'idem_effects'), ('consumer', 'idem_replay_effects'), ('consumer', 'idem_send'),
    ('consumer', 'idem_send_bytes'), ('consumer', 'idem_acquire'), ('consumer', 'idem_extend'),
    ('consumer', 'idem_complete'), ('consumer', 'idem_release'), ('consumer', 'idem_bury'),
    ('consumer', 'idem_reject'), ('consumer', 'idem_receive'), ('consumer', 'idem_receive_bytes'),
    ('consumer', 'idem_next'), ('consumer', 'idem_next_wait'), ('consumer', 'idem_begin_call'),
    ('consumer', 'idem_finish_call'), ('consumer', 'idem_fail_call'), ('consumer', 'idem_calls'),
    ('receiver', 'idem_receive'), ('receiver', 'idem_receive_bytes'),
    ('receiver', 'idem_is_claimed'),
    ('operator', 'idem_requeue'), ('operator', 'idem_requeue_all'), ('operator', 'idem_discard'),
    ('operator', 'idem_discard_all'), ('operator', 'idem_forward'),
    ('operator', 'idem_forward_all'), ('operator', 'idem_health'), ('operator', 'idem_is_claimed'),
    ('operator', 'idem_relay_unpark'), ('operator', 'idem_relay_unpark_all'),
    ('operator', 'idem_relay_discard'), ('operator', 'idem_relay_discard_all'),
    ('relay', 'idem_relay_next'), ('relay', 'idem_relay_ack'), ('relay', 'idem_relay_park'),
    ('relay', 'idem_relay_wait'), ('relay', 'idem_relay_extend'),
    ('relay', 'idem_relay_partitions'), ('relay', 'idem_hand_over'),
    ('monitor', 'idem_health'), ('monitor', 'idem_is_claimed'),
    ('monitor', 'idem_rotation_blockers'),
    ('admin', 'idem_forget'), ('admin', 'idem_configure'), ('admin', 'idem_set_retention'),
    ('admin', 'idem_grant'), ('admin', 'idem_revoke'), ('admin', 'idem_maintain'),
    ('admin', 'idem_create_relay'), ('admin', 'idem_drop_relay'), ('admin', 'idem_relay_unpark'),
    ('admin', 'idem_relay_unpark_all'), ('admin', 'idem_relay_discard'),
    ('admin', 'idem_relay_discard_all'), ('admin', 'idem_repair_relays'), ('admin', 'idem_health'),
    ('admin', 'idem_rotation_blockers'), ('admin', 'idem_configure_retries'),
    ('admin', 'idem_remove_destination'), ('admin', 'idem_requeue'), ('admin', 'idem_requeue_all'),
    ('admin', 'idem_discard'), ('admin', 'idem_discard_all'), ('admin', 'idem_forward'),
    ('admin', 'idem_forward_all');

CREATE TABLE idem.view_of_kind (
    kind      text NOT NULL,
    may_read  text NOT NULL,
    CONSTRAINT view_of_kind_pkey PRIMARY KEY (kind, may_read)
);
COMMENT ON TABLE idem.view_of_kind IS
    'The views of each kind of role: idem_grant grants SELECT on them. idem.dead_letters shows '
    'the payloads of messages.';
INSERT INTO idem.view_of_kind (kind, may_read) VALUES
    ('relay', 'parked'),
    ('operator', 'parked'), ('operator', 'leases'), ('operator', 'waiting_messages'),
    ('operator', 'dead_letters'),
    ('monitor', 'parked'), ('monitor', 'leases'), ('monitor', 'waiting_messages'),
    ('monitor', 'inbox'), ('monitor', 'outbox'), ('monitor', 'rings'), ('monitor', 'relays'),
    ('monitor', 'stats'),
    ('admin', 'parked'), ('admin', 'leases'), ('admin', 'waiting_messages'),
    ('admin', 'dead_letters'), ('admin', 'inbox'), ('admin', 'outbox'), ('admin', 'rings'),
    ('admin', 'relays'), ('admin', 'stats');

-- EXECUTE on one of these functions records that a role has a kind. The other privileges of the
-- role do not show its kinds, because kinds overlap: a consumer has all privileges of a receiver.
-- PostgreSQL renames, drops and dumps these privileges together with the role.
CREATE FUNCTION idem.granted_consumer() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_consumer() IS
    'EXECUTE records that the role was granted the kind consumer.';
CREATE FUNCTION idem.granted_receiver() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_receiver() IS
    'EXECUTE records that the role was granted the kind receiver.';
CREATE FUNCTION idem.granted_relay() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_relay() IS
    'EXECUTE records that the role was granted the kind relay.';
CREATE FUNCTION idem.granted_operator() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_operator() IS
    'EXECUTE records that the role was granted the kind operator.';
CREATE FUNCTION idem.granted_monitor() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_monitor() IS
    'EXECUTE records that the role was granted the kind monitor.';
CREATE FUNCTION idem.granted_admin() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
COMMENT ON FUNCTION idem.granted_admin() IS
    'EXECUTE records that the role was granted the kind admin.';

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
      FROM unnest(ARRAY['waiting()', 'relay_states()', 'counters()', 'ran()',
                        'slice_table(text, integer)', 'slice_tables(text, integer)']) f (behind)
     WHERE privileges_of_kind.kind IN ('monitor', 'admin')
    UNION ALL
    -- idem_maintain runs with the privileges of its caller, because only such a procedure can
    -- commit.
    SELECT 'EXECUTE', 'FUNCTION idem.' || f.behind
      FROM unnest(ARRAY['maintenance_steps()', 'maintain_step(text, boolean)']) f (behind)
     WHERE privileges_of_kind.kind = 'admin'
$$;
COMMENT ON FUNCTION idem.privileges_of_kind(text) IS
    'Returns what idem_grant grants for a kind and idem_revoke revokes: privileges, and objects '
    'as GRANT names them.';

CREATE FUNCTION idem.check_grant(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'cannot change privileges in a read-only transaction'
            USING ERRCODE = 'read_only_sql_transaction';
    ELSIF role IS NULL OR kind IS NULL THEN
        RAISE EXCEPTION 'role and kind must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF NOT EXISTS (SELECT 1 FROM idem.kind_of_role k WHERE k.kind = check_grant.kind) THEN
        RAISE EXCEPTION 'there is no kind "%"', kind
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'The kinds are consumer, receiver, relay, operator, monitor and admin.';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = role) THEN
        RAISE EXCEPTION 'role % does not exist', role
            USING ERRCODE = 'undefined_object', HINT = 'Create it with CREATE ROLE.';
    END IF;
    -- This lock serializes changes of privileges, because each change reads the kinds that the
    -- previous change left to the role.
    LOCK TABLE idem.kind_of_role IN SHARE ROW EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION idem.check_grant(regrole, text) IS
    'Checks the arguments of idem_grant and idem_revoke, and serializes these functions. Errors: '
    '22004, 22023, 25006, 42704.';

CREATE FUNCTION idem_grant(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given record;
BEGIN
    PERFORM idem.check_grant(role, kind);
    FOR given IN SELECT p.privilege, p.object FROM idem.privileges_of_kind(kind) p
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', given.privilege, given.object, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_grant(regrole, text) IS
    'Grants a role the privileges of a kind: consumer, receiver, relay, operator, monitor or '
    'admin. These are EXECUTE on its functions and SELECT on its views; no kind has privileges on '
    'tables. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby or read-only '
    'transaction), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'cannot revoke a kind in a % transaction',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Revoke it in a READ COMMITTED transaction: the current kinds of the role '
                         'must be read.';
    END IF;
    PERFORM idem.check_grant(role, kind);
    -- If the role was not granted the kind, it keeps its privileges, because it has them for other
    -- reasons.
    IF NOT EXISTS (SELECT 1 FROM idem.kinds_of_role(role) held (kind)
                    WHERE held.kind = idem_revoke.kind) THEN
        RETURN;
    END IF;
    FOR taken IN
        SELECT p.privilege, p.object FROM idem.privileges_of_kind(idem_revoke.kind) p
        EXCEPT
        SELECT p.privilege, p.object
          FROM idem.kinds_of_role(role) other (kind), idem.privileges_of_kind(other.kind) p
         WHERE other.kind <> idem_revoke.kind
    LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s', taken.privilege, taken.object, role);
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_revoke(regrole, text) IS
    'Revokes what idem_grant granted for a kind, except the privileges that another kind of the '
    'role needs. Does nothing if the role was not granted the kind. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 2BP01 (dependent privileges exist), 42704 (no such role).';

-- Until idem_grant is called, only the owner has privileges. By default PostgreSQL grants EXECUTE
-- on functions to PUBLIC, and ALTER DEFAULT PRIVILEGES of this database may grant more. Both are
-- revoked here.
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
                 WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,S}'::"char"[])) m
          JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) m.class
                                     AND e.objid OPERATOR(pg_catalog.=) m.oid
                                     AND e.deptype OPERATOR(pg_catalog.=) 'e'
          JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) e.refobjid
                                        AND x.extname OPERATOR(pg_catalog.=) 'idem'
         CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) a
         WHERE a.grantee OPERATOR(pg_catalog.<>) m.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s', given.what, given.name,
                                  CASE given.grantee WHEN 0 THEN 'PUBLIC'
                                       ELSE given.grantee::pg_catalog.regrole::text END);
    END LOOP;
END
$$;
REVOKE ALL ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state FROM PUBLIC;
GRANT USAGE ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state TO PUBLIC;

-- The CHECK constraints of the pending messages call this function as the role that writes. Its
-- only effect is that claims look for pending messages.
GRANT EXECUTE ON FUNCTION idem.note_pending(bigint) TO PUBLIC;
