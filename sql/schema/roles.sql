-- The kinds of roles and their privileges. PUBLIC has no privileges. A role gets EXECUTE on the
-- functions and SELECT on the views of its kinds, and no privilege on a table.
--
-- The kinds of a role are recorded as EXECUTE on the marker functions idem.granted_<kind>(). The
-- other privileges do not show them, because kinds overlap: a consumer has every privilege of a
-- receiver. A table of roles would be wrong after a role is renamed or dropped, or after a restore
-- into another cluster.

CREATE TABLE idem.kind_of_role (
    kind      text NOT NULL,
    may_call  text NOT NULL,
    CONSTRAINT kind_of_role_pkey PRIMARY KEY (kind, may_call)
);
COMMENT ON TABLE idem.kind_of_role IS
    'The functions of each kind of role, by name, with all overloads: idem_grant grants EXECUTE '
    'on them.';
INSERT INTO idem.kind_of_role (kind, may_call)
SELECT k.kind, n.name
  FROM (VALUES
    ('consumer'::text, '{
        idem_try_claim, idem_try_claim_batch, idem_try_claim_uuid_batch, idem_claim,
        idem_claim_in_block, idem_is_claimed, idem_forbid_commit, idem_allow_commit,
        idem_record_effects, idem_record_effects_batch, idem_try_record, idem_effects,
        idem_replay_effects, idem_send, idem_send_bytes, idem_acquire, idem_extend,
        idem_complete, idem_release, idem_bury, idem_reject, idem_receive,
        idem_receive_bytes, idem_next, idem_next_wait, idem_begin_call, idem_finish_call,
        idem_fail_call, idem_calls}'::text[]),
    ('receiver'::text, '{
        idem_receive, idem_receive_bytes, idem_is_claimed}'::text[]),
    ('operator'::text, '{
        idem_requeue, idem_requeue_all, idem_discard, idem_discard_all, idem_forward,
        idem_forward_all, idem_health, idem_is_claimed, idem_relay_unpark,
        idem_relay_unpark_all, idem_relay_discard, idem_relay_discard_all}'::text[]),
    ('relay'::text, '{
        idem_relay_next, idem_relay_ack, idem_relay_park, idem_relay_wait,
        idem_relay_extend, idem_relay_partitions, idem_hand_over}'::text[]),
    ('monitor'::text, '{
        idem_health, idem_is_claimed, idem_rotation_blockers}'::text[]),
    ('admin'::text, '{
        idem_forget, idem_configure, idem_set_retention, idem_grant, idem_revoke,
        idem_maintain, idem_create_relay, idem_drop_relay, idem_relay_unpark,
        idem_relay_unpark_all, idem_relay_discard, idem_relay_discard_all,
        idem_repair_relays, idem_health, idem_rotation_blockers, idem_configure_retries,
        idem_remove_destination, idem_set_message_identity, idem_requeue, idem_requeue_all,
        idem_discard, idem_discard_all, idem_forward, idem_forward_all, idem_finish_restore,
        idem_new_installation}'::text[])) AS k (kind, names),
       pg_catalog.unnest(k.names) AS n (name);

CREATE TABLE idem.view_of_kind (
    kind      text NOT NULL,
    may_read  text NOT NULL,
    CONSTRAINT view_of_kind_pkey PRIMARY KEY (kind, may_read)
);
COMMENT ON TABLE idem.view_of_kind IS
    'The views of each kind of role: idem_grant grants SELECT on them. idem.dead_letters shows '
    'the payloads of messages.';
INSERT INTO idem.view_of_kind (kind, may_read)
SELECT k.kind, n.name
  FROM (VALUES
    ('relay'::text, '{
        parked}'::text[]),
    ('operator'::text, '{
        parked, leases, waiting_messages, waiting_claims, dead_letters}'::text[]),
    ('monitor'::text, '{
        parked, leases, waiting_messages, waiting_claims, inbox, outbox, rings, relays,
        stats, filters}'::text[]),
    ('admin'::text, '{
        parked, leases, waiting_messages, waiting_claims, dead_letters, inbox, outbox,
        rings, relays, stats, filters}'::text[])) AS k (kind, names),
       pg_catalog.unnest(k.names) AS n (name);
