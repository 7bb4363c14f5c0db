-- The journal of external calls. The functions are in extension/src/sql_api/journal.rs.

CREATE FUNCTION idem_begin_call(
    id text, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response json, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_text_wrapper';
COMMENT ON FUNCTION idem_begin_call(text, text, text, jsonb, bigint) IS
    'Begins a step (1 to 255 bytes) of a message that is an external call: commit, then send the '
    'request with idempotency_key, which is the same for every attempt. state: new (send the '
    'request), unknown (an earlier attempt may have had its effect; begun_at is the time of the '
    'first such attempt), done (response is the recorded response), failed (the call failed for '
    'good with this error). attempt: the number of this attempt. Waits for a concurrent caller. '
    'token: that of the lease under which the message is processed. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the step was begun with another request), 25006 '
    '(standby or read-only transaction), 42601 (SELECT (idem_begin_call(...)).*), 55000 (the token '
    'does not hold the lease).';

CREATE FUNCTION idem_begin_call(
    id uuid, destination text, step text, request jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    OUT state idem_call_state, OUT idempotency_key text, OUT response json, OUT attempt integer,
    OUT begun_at timestamptz, OUT error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_begin_call_uuid_wrapper';

CREATE FUNCTION idem_finish_call(
    id text, destination text, step text, response json DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_text_wrapper';
COMMENT ON FUNCTION idem_finish_call(text, text, text, json) IS
    'Records the response of an external call that was begun. Every later attempt gets this '
    'response, byte for byte. Recording the same response again changes nothing. Errors: 22004 '
    '(null argument), 22023 (invalid argument), 25006 (standby or read-only transaction), 54000 '
    '(larger than idem.max_payload), 55000 (not begun, or ended with another result).';

CREATE FUNCTION idem_finish_call(
    id uuid, destination text, step text, response json DEFAULT NULL
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_finish_call_uuid_wrapper';

CREATE FUNCTION idem_fail_call(
    id text, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_text_wrapper';
COMMENT ON FUNCTION idem_fail_call(text, text, text, text, boolean) IS
    'Records that an attempt of an external call failed. retryable: '
    'true if the attempt certainly had no effect. It is then taken back, and the call is new '
    'again unless an earlier attempt may have had its effect. false: the call failed for good and '
    'is never repeated. Errors: 22004 (null argument), 22023 (invalid argument), 25006 (standby '
    'or read-only transaction), 55000 (not begun, or ended with another result).';

CREATE FUNCTION idem_fail_call(
    id uuid, destination text, step text, error text, retryable boolean DEFAULT true
) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_call_uuid_wrapper';

CREATE FUNCTION idem_calls(
    id text, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response json, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_text_wrapper';
COMMENT ON FUNCTION idem_calls(text, text) IS
    'Returns the external calls of a message, in the order in which they were first begun. The '
    'result is current at every isolation level. Works on a standby. Errors: 22004 (null '
    'argument), 22023 (invalid argument).';

CREATE FUNCTION idem_calls(
    id uuid, destination text
) RETURNS TABLE (
    step text, state idem_call_state, attempt integer, begun_at timestamptz, ended_at timestamptz,
    response json, error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_calls_uuid_wrapper';
