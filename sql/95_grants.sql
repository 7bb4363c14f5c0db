-- Who may call what. PUBLIC may nothing; a role gets EXECUTE on the calls of its kind, and no table.

CREATE TABLE idem.kind_of_role (
    kind      text NOT NULL,
    may_call  text NOT NULL,
    CONSTRAINT kind_of_role_pkey PRIMARY KEY (kind, may_call)
);
COMMENT ON TABLE idem.kind_of_role IS 'What idem_grant grants: the names of the calls of each kind, all overloads of each.';
INSERT INTO idem.kind_of_role (kind, may_call) VALUES
    ('consumer', 'idem_try_claim'), ('consumer', 'idem_try_claim_batch'), ('consumer', 'idem_try_claim_uuid_batch'), ('consumer', 'idem_claim'), ('consumer', 'idem_claim_in_block'),
    ('consumer', 'idem_is_claimed'), ('consumer', 'idem_record_effects'), ('consumer', 'idem_try_record'),
    ('consumer', 'idem_effects'), ('consumer', 'idem_replay_effects'), ('consumer', 'idem_send'), ('consumer', 'idem_send_bytes'),
    ('consumer', 'idem_acquire'), ('consumer', 'idem_extend'), ('consumer', 'idem_complete'), ('consumer', 'idem_release'),
    ('consumer', 'idem_bury'), ('consumer', 'idem_reject'), ('consumer', 'idem_receive'), ('consumer', 'idem_receive_bytes'), ('consumer', 'idem_next'), ('consumer', 'idem_next_wait'),
    ('consumer', 'idem_begin_call'), ('consumer', 'idem_finish_call'), ('consumer', 'idem_fail_call'), ('consumer', 'idem_calls'),
    ('receiver', 'idem_receive'), ('receiver', 'idem_receive_bytes'), ('receiver', 'idem_is_claimed'),
    ('operator', 'idem_requeue'), ('operator', 'idem_requeue_all'), ('operator', 'idem_discard'), ('operator', 'idem_discard_all'),
    ('operator', 'idem_forward'), ('operator', 'idem_forward_all'),
    ('operator', 'idem_health'), ('operator', 'idem_is_claimed'),
    ('operator', 'idem_relay_unpark'), ('operator', 'idem_relay_unpark_all'),
    ('operator', 'idem_relay_discard'), ('operator', 'idem_relay_discard_all'),
    ('relay', 'idem_relay_next'), ('relay', 'idem_relay_ack'), ('relay', 'idem_relay_park'), ('relay', 'idem_relay_wait'),
    ('relay', 'idem_relay_extend'), ('relay', 'idem_relay_partitions'), ('relay', 'idem_hand_over'),
    ('monitor', 'idem_health'), ('monitor', 'idem_is_claimed'), ('monitor', 'idem_rotation_blockers'),
    ('admin', 'idem_forget'), ('admin', 'idem_configure'), ('admin', 'idem_set_retention'), ('admin', 'idem_grant'),
    ('admin', 'idem_maintain'), ('admin', 'idem_create_relay'), ('admin', 'idem_drop_relay'),
    ('admin', 'idem_relay_unpark'), ('admin', 'idem_relay_unpark_all'),
    ('admin', 'idem_relay_discard'), ('admin', 'idem_relay_discard_all'),
    ('admin', 'idem_repair_relays'), ('admin', 'idem_health'), ('admin', 'idem_rotation_blockers'),
    ('admin', 'idem_configure_retries'), ('admin', 'idem_remove_destination'), ('admin', 'idem_requeue'), ('admin', 'idem_requeue_all'),
    ('admin', 'idem_discard'), ('admin', 'idem_discard_all'), ('admin', 'idem_forward'), ('admin', 'idem_forward_all');

CREATE FUNCTION idem_grant(role regrole, kind text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    call record;
BEGIN
    IF role IS NULL OR kind IS NULL THEN
        RAISE EXCEPTION 'role and kind must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF NOT EXISTS (SELECT 1 FROM idem.kind_of_role k WHERE k.kind = idem_grant.kind) THEN
        RAISE EXCEPTION 'there is no kind "%"', kind
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The kinds are consumer, receiver, relay, operator, monitor and admin.';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_roles a WHERE a.oid = role) THEN
        RAISE EXCEPTION 'role % does not exist', role
            USING ERRCODE = 'undefined_object', HINT = 'Make it with CREATE ROLE.';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA @extschema@ TO %s', role);
    FOR call IN
        SELECT f.oid::regprocedure AS signature, CASE f.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END AS what
          FROM idem.kind_of_role k
          JOIN pg_proc f ON f.proname = k.may_call
          JOIN pg_depend e ON e.classid = 'pg_proc'::regclass AND e.objid = f.oid AND e.deptype = 'e'
                          AND e.refclassid = 'pg_extension'::regclass
          JOIN pg_extension x ON x.oid = e.refobjid AND x.extname = 'idem'
         WHERE k.kind = idem_grant.kind
    LOOP
        EXECUTE format('GRANT EXECUTE ON %s %s TO %s', call.what, call.signature, role);
    END LOOP;
    IF kind = 'admin' THEN
        -- idem_maintain runs with its caller's rights, because only such a procedure can commit.
        EXECUTE format('GRANT USAGE ON SCHEMA idem TO %s', role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION idem.maintenance_steps(), idem.maintain_step(text, boolean) TO %s', role);
    END IF;
    IF kind IN ('relay', 'operator', 'monitor', 'admin') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA idem TO %s', role);
        EXECUTE format('GRANT SELECT ON idem.parked TO %s', role);
    END IF;
    IF kind IN ('operator', 'monitor', 'admin') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA idem TO %s', role);
        EXECUTE format('GRANT SELECT ON idem.leases, idem.waiting_messages TO %s', role);
    END IF;
    IF kind IN ('operator', 'admin') THEN
        -- With what the messages carry.
        EXECUTE format('GRANT SELECT ON idem.dead_letters TO %s', role);
    END IF;
    IF kind IN ('monitor', 'admin') THEN
        EXECUTE format('GRANT SELECT ON idem.inbox, idem.outbox, idem.rings, idem.relays, idem.stats TO %s', role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION idem.waiting(), idem.relay_states(), idem.counters(), idem.ran(), idem.slice_table(text, integer), idem.slice_tables(text, integer) TO %s', role);
    END IF;
END
$$;
COMMENT ON FUNCTION idem_grant(regrole, text) IS 'Lets a role do the work of a consumer, receiver, relay, operator, monitor or admin: EXECUTE on those calls, no table. Errors: 22004, 22023, 42704.';

-- Nobody but the owner has anything until idem_grant: not PUBLIC, whom functions are given to by default, and not those
-- whom ALTER DEFAULT PRIVILEGES of this database favours.
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
                  FROM pg_catalog.pg_class c WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,v,S}'::"char"[])) m
          JOIN pg_catalog.pg_depend e ON e.classid OPERATOR(pg_catalog.=) m.class AND e.objid OPERATOR(pg_catalog.=) m.oid
                                     AND e.deptype OPERATOR(pg_catalog.=) 'e'
          JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) e.refobjid AND x.extname OPERATOR(pg_catalog.=) 'idem'
         CROSS JOIN LATERAL pg_catalog.aclexplode(m.acl) a
         WHERE a.grantee OPERATOR(pg_catalog.<>) m.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s', given.what, given.name,
                                  CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE given.grantee::pg_catalog.regrole::text END);
    END LOOP;
END
$$;
REVOKE ALL ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state FROM PUBLIC;
GRANT USAGE ON TYPE idem_outcome, idem_effect, idem_lease_outcome, idem_call_state TO PUBLIC;

-- The CHECK constraints of the pending messages call it as the role that writes. All that it does is to make claims look.
GRANT EXECUTE ON FUNCTION idem.note_pending(bigint) TO PUBLIC;
