-- Leases. The functions are in extension/src/sql_api/leases.rs.

CREATE FUNCTION idem_acquire(
    id text, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_text_wrapper';
COMMENT ON FUNCTION idem_acquire(text, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits, at any '
    'isolation level. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id '
    'has the same key), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_acquire(
    id uuid, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_uuid_wrapper';
COMMENT ON FUNCTION idem_acquire(uuid, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits, at any '
    'isolation level. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (another id '
    'has the same key), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_complete(
    id text, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_wrapper';
COMMENT ON FUNCTION idem_complete(text, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost; nothing is written), 55P03 (the lease expired, and a '
    'running transaction has claimed the message).';

CREATE FUNCTION idem_complete(
    id uuid, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_uuid_wrapper';
COMMENT ON FUNCTION idem_complete(uuid, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (another id has the same key), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost; nothing is written), 55P03 (the lease expired, and a '
    'running transaction has claimed the message).';
