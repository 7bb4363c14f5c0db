-- The durable inbox. The functions are in extension/src/sql_api/inbox.rs.

CREATE FUNCTION idem_receive(
    id text, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_text_wrapper';
COMMENT ON FUNCTION idem_receive(text, text, jsonb, jsonb, text, timestamptz, text, text) IS
    'Stores a message in the durable inbox, to be processed later. Acknowledge the message to its '
    'broker after the commit. Returns false, and stores nothing, if the message is already '
    'received, dead or claimed. A message of a broker that is leased or waits for a retry is '
    'stored: it keeps its lease and its attempts, and idem_next returns it after the end of the '
    'lease or of the back-off. Waits for the end of a transaction that claims, completes or '
    'receives the message. key: the ordering key. Messages with the same ordering key are '
    'processed one at a time, in the order of arrival. deliver_after: idem_next does not return '
    'the message before this time, unless it was leased before. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (the hash of this id is the hash of another id), 25006 '
    '(standby or read-only transaction), 54000 (larger than idem.max_payload).';

CREATE FUNCTION idem_receive(
    id uuid, destination text, payload jsonb, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_uuid_wrapper';

CREATE FUNCTION idem_receive_bytes(
    id text, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_text_wrapper';
COMMENT ON FUNCTION idem_receive_bytes(text, text, bytea, jsonb, text, timestamptz, text, text) IS
    'Does the same as idem_receive, with a payload of bytes. Errors: 22004 (null argument), 22023 '
    '(invalid argument), 23000 (the hash of this id is the hash of another id), 25006 (standby or '
    'read-only transaction), 54000 (larger than idem.max_payload).';

CREATE FUNCTION idem_receive_bytes(
    id uuid, destination text, payload bytea, headers jsonb DEFAULT NULL, key text DEFAULT NULL,
    deliver_after timestamptz DEFAULT NULL, type text DEFAULT NULL, content_type text DEFAULT NULL
) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_receive_bytes_uuid_wrapper';

CREATE FUNCTION idem_next(
    destination  text,
    max_messages integer  DEFAULT 1,
    lease        interval DEFAULT '30 seconds',
    max_bytes    bigint   DEFAULT 16777216
)
RETURNS TABLE (
    token         bigint,
    seq           bigint,
    id            text,
    key           text,
    type          text,
    payload       bytea,
    content_type  text,
    headers       jsonb,
    traceparent   text,
    attempt       integer,
    received_at   timestamptz,
    last_error    text,
    lease_expired boolean
)
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'idem_next_wrapper';
COMMENT ON FUNCTION idem_next(text, integer, interval, bigint) IS
    'Leases due messages of the durable inbox of a destination, and returns them in order. '
    'Returns at most max_messages messages (1 to 10,000) with at most max_bytes bytes of payloads '
    'and headers (1 to 1 GB), but the first message whatever its size. A smaller result does not '
    'mean that no other message is due. A message that does not fit is not leased, but its row '
    'stays locked until the transaction ends. Of the messages with one ordering key only the '
    'first is returned, and none while another one is leased, or while an earlier one waits for a '
    'retry. A message with an expired lease (lease_expired) is returned alone. Finish each '
    'message with idem_complete, or with idem_try_claim in the business transaction, or release '
    'it with idem_release. A message that is not finished is returned again after its lease, '
    'until no attempt is left. lease: 1 millisecond to 1 day. Errors: 22004 (null argument), '
    '22023 (invalid argument), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction).';

CREATE FUNCTION idem_next_wait(destination text, timeout_ms integer DEFAULT 1000) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'idem_next_wait_wrapper';
COMMENT ON FUNCTION idem_next_wait(text, integer) IS
    'Waits at most timeout_ms milliseconds until idem_next can return a message of the '
    'destination, or can move an exhausted message to the dead letters. Returns true if it can. '
    'Errors: 22004 (null argument), 22023 (invalid argument), 25000 (not READ COMMITTED), 25006 '
    '(standby or read-only transaction).';
