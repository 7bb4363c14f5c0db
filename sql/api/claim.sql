-- Claims. The functions are in extension/src/sql_api/claim.rs.

CREATE FUNCTION idem_try_claim(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_text_wrapper';
COMMENT ON FUNCTION idem_try_claim(text, text) IS
    'Claims a message for a destination (1 to 255 bytes). A text id has 1 to 1,024 bytes. Returns '
    'true if this transaction is the first: process the message. Returns false if the message is a '
    'duplicate. Waits for a concurrent claimer. Returns false if that transaction commits, and '
    'claims the message if it rolls back. Errors: 22004 (null argument), 22023 (invalid '
    'argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_try_claim(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_wrapper';

CREATE FUNCTION idem_try_claim_batch(ids text[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_batch_wrapper';
COMMENT ON FUNCTION idem_try_claim_batch(text[], text) IS
    'Claims up to 100,000 messages of one destination. Returns true or false for each id, as '
    'idem_try_claim does, at the position of the id. The second of two equal ids is a duplicate. '
    'Two batches never deadlock. Errors: 22004 (null argument), 22023 (invalid argument), 23000 '
    '(the hash of an id is the hash of another id), 25006 (standby or read-only transaction), '
    '25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_try_claim_uuid_batch(ids uuid[], destination text) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_claim_uuid_batch_wrapper';
COMMENT ON FUNCTION idem_try_claim_uuid_batch(uuid[], text) IS
    'Does the same as idem_try_claim_batch, with uuids. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (an id is the hash of another id), 25006 (standby or read-only '
    'transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_text_wrapper';
COMMENT ON FUNCTION idem_claim(text, text, boolean, bytea, timestamptz) IS
    'Claims a message for a destination and returns details. outcome: claimed, duplicate, '
    'in_progress (only if wait is false), mismatch (processed with another fingerprint), or '
    'expired (sent_at is before the time since which the ring remembers claims). handled_at: the '
    'time of the first claim. fingerprint: 1 to 64 bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 25P01 (idem.lone_claims), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_uuid_wrapper';

CREATE FUNCTION idem_claim_in_block(
    id text, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_text_wrapper';
COMMENT ON FUNCTION idem_claim_in_block(text, text, boolean, bytea, timestamptz) IS
    'Does the same as idem_claim, but fails outside a transaction block whatever the setting '
    'idem.lone_claims is. For a client that sends BEGIN and the claim without waiting in between. '
    'Use it in a statement of its own: a PL/pgSQL block with EXCEPTION counts as a transaction '
    'block. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id '
    'is the hash of another id), 25006 (standby or read-only transaction), 25P01 (no transaction '
    'block), 55P03 (the message is leased).';

CREATE FUNCTION idem_claim_in_block(
    id uuid, destination text, wait boolean DEFAULT true, fingerprint bytea DEFAULT NULL,
    sent_at timestamptz DEFAULT NULL, OUT outcome idem_outcome, OUT handled_at timestamptz
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_in_block_uuid_wrapper';

CREATE FUNCTION idem_is_claimed(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_is_claimed_wrapper';
COMMENT ON FUNCTION idem_is_claimed(text, text) IS
    'Returns whether a committed transaction or the current one has claimed the message. Writes '
    'nothing, and works on a standby. Errors: 22004 (null argument), 22023 (invalid argument), '
    '23000 (the hash of this id is the hash of another id).';

CREATE FUNCTION idem_is_claimed(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_is_claimed_uuid_wrapper';

CREATE FUNCTION idem_forget(id text, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forget_wrapper';
COMMENT ON FUNCTION idem_forget(text, text) IS
    'Forgets a claim and the external calls of its message with their results, so that the '
    'message can be processed again: its next execution repeats the calls, with the same '
    'idempotency keys. Returns false if there is no claim. The effects stay in the outbox. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id is the '
    'hash of another id), 25006 (standby or read-only transaction), 55000 (the current transaction '
    'made the claim).';

CREATE FUNCTION idem_forget(id uuid, destination text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forget_uuid_wrapper';
