-- Effects. The functions are in extension/src/sql_api/effects.rs.

CREATE FUNCTION idem_record_effects(id text, destination text, effects jsonb) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_record_effects_wrapper';
COMMENT ON FUNCTION idem_record_effects(text, text, jsonb) IS
    'Records effects with the claim that the current transaction holds, and returns their message '
    'ids. effects: an array of objects, or one object, with the members topic, payload or '
    'payload_base64, and optionally content_type, key, type, headers, message_id and '
    'deliver_after (RFC 3339). At most 10,000 effects. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 54000 (larger than idem.max_payload), 55000 (no claim in this '
    'transaction).';

CREATE FUNCTION idem_record_effects(id uuid, destination text, effects jsonb) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_record_effects_uuid_wrapper';

CREATE FUNCTION idem_record_effects_batch(ids text[], destination text, effects jsonb)
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_record_effects_batch_wrapper';
COMMENT ON FUNCTION idem_record_effects_batch(text[], text, jsonb) IS
    'Records effects with several claims that the current transaction holds, as '
    'idem_record_effects does for each. effects: an array with one element for each id, in the '
    'same order: the effects of this message. Returns the message ids of all effects, in order. At '
    'most 10,000 effects. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash '
    'of an id is the hash of another id), 25006 (standby or read-only transaction), 54000 (larger '
    'than idem.max_payload), 55000 (a message has no claim in this transaction).';

CREATE FUNCTION idem_try_record(id text, destination text, effects jsonb) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_record_wrapper';
COMMENT ON FUNCTION idem_try_record(text, text, jsonb) IS
    'Claims a message and records its effects, as idem_try_claim and idem_record_effects do. '
    'Returns false, and records nothing, if the message is a duplicate. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25006 (standby or read-only transaction), 54000 (larger than idem.max_payload), 55P03 (the '
    'message is leased).';

CREATE FUNCTION idem_try_record(id uuid, destination text, effects jsonb) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_try_record_uuid_wrapper';

CREATE FUNCTION idem_effects(id text, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_text_wrapper';
COMMENT ON FUNCTION idem_effects(text, text) IS
    'Returns the effects that the first execution of the message recorded, in order and byte for '
    'byte. The result is current at every isolation level. Works on a standby. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another '
    'id).';

CREATE FUNCTION idem_effects(id uuid, destination text) RETURNS SETOF idem_effect
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_effects_uuid_wrapper';

CREATE FUNCTION idem_replay_effects(id text, destination text) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_replay_effects_wrapper';
COMMENT ON FUNCTION idem_replay_effects(text, text) IS
    'Copies the recorded effects of a message into the outbox again, with the same message ids. '
    'Returns their number. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the '
    'hash of this id is the hash of another id), 25006 (standby or read-only transaction).';

CREATE FUNCTION idem_replay_effects(id uuid, destination text) RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_replay_effects_uuid_wrapper';

CREATE FUNCTION idem_send(
    topic text, payload jsonb, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_wrapper';
COMMENT ON FUNCTION idem_send(text, jsonb, text, text, jsonb, uuid, text) IS
    'Sends a message with a JSON payload that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction), 54000 (larger than '
    'idem.max_payload).';

CREATE FUNCTION idem_send_bytes(
    topic text, payload bytea, key text DEFAULT NULL, type text DEFAULT NULL,
    headers jsonb DEFAULT NULL, message_id uuid DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_send_bytes_wrapper';
COMMENT ON FUNCTION idem_send_bytes(text, bytea, text, text, jsonb, uuid, text) IS
    'Sends a message with a payload of bytes that does not result from another message, when the '
    'current transaction commits. Returns its message id. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 25006 (standby or read-only transaction), 54000 (larger than '
    'idem.max_payload).';
