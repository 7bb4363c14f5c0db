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
INSERT INTO idem.kind_of_role (kind, may_call) VALUES
    ('consumer', 'idem_try_claim'), ('consumer', 'idem_try_claim_batch'),
    ('consumer', 'idem_try_claim_uuid_batch'), ('consumer', 'idem_claim'),
    ('consumer', 'idem_claim_in_block'), ('consumer', 'idem_is_claimed'),
    ('consumer', 'idem_forbid_commit'), ('consumer', 'idem_allow_commit'),
    ('consumer', 'idem_record_effects'), ('consumer', 'idem_record_effects_batch'),
    ('consumer', 'idem_try_record'),
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
    ('admin', 'idem_remove_destination'), ('admin', 'idem_set_message_identity'),
    ('admin', 'idem_requeue'), ('admin', 'idem_requeue_all'),
    ('admin', 'idem_discard'), ('admin', 'idem_discard_all'), ('admin', 'idem_forward'),
    ('admin', 'idem_forward_all'), ('admin', 'idem_finish_restore'),
    ('admin', 'idem_new_installation');

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
    ('operator', 'waiting_claims'), ('operator', 'dead_letters'),
    ('monitor', 'parked'), ('monitor', 'leases'), ('monitor', 'waiting_messages'),
    ('monitor', 'waiting_claims'), ('monitor', 'inbox'), ('monitor', 'outbox'),
    ('monitor', 'rings'), ('monitor', 'relays'),
    ('monitor', 'stats'), ('monitor', 'filters'),
    ('admin', 'parked'), ('admin', 'leases'), ('admin', 'waiting_messages'),
    ('admin', 'waiting_claims'), ('admin', 'dead_letters'), ('admin', 'inbox'),
    ('admin', 'outbox'), ('admin', 'rings'),
    ('admin', 'relays'), ('admin', 'stats'), ('admin', 'filters');
