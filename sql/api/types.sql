-- The types of the results.

CREATE TYPE idem_outcome AS ENUM ('claimed', 'duplicate', 'in_progress', 'mismatch', 'expired');
COMMENT ON TYPE idem_outcome IS
    'The result of a claim. claimed: process the message. duplicate: the message was processed. '
    'in_progress: another process is processing it. mismatch: the message was processed with '
    'another fingerprint. expired: the message is too old to be distinguished from a duplicate.';

CREATE TYPE idem_effect AS (
    message_id    uuid,
    ordinal       int4,
    topic         text,
    key           text,
    type          text,
    payload       bytea,
    content_type  text,
    headers       jsonb,
    traceparent   text,
    deliver_after timestamptz,
    recorded_at   timestamptz
);
COMMENT ON TYPE idem_effect IS
    'An outgoing message as it was recorded. A JSON payload is stored as its UTF-8 text.';
COMMENT ON COLUMN idem_effect.recorded_at IS 'The time of the claim of the message.';

CREATE TYPE idem_lease_outcome AS ENUM
    ('acquired', 'duplicate', 'in_progress', 'exhausted', 'dead');
COMMENT ON TYPE idem_lease_outcome IS
    'The result of idem_acquire. acquired: process the message. duplicate: the message was '
    'processed. in_progress: another process holds the lease, or the message waits for a retry. '
    'exhausted: the message is leased, but no attempt is left: move it to the dead letters with '
    'idem_bury. dead: the message is a dead letter.';

CREATE TYPE idem_call_state AS ENUM ('new', 'unknown', 'done', 'failed');
COMMENT ON TYPE idem_call_state IS
    'What is known about an external call. new: send the request. unknown: an earlier attempt '
    'began and its result was never recorded. done: the call succeeded, and its response is '
    'recorded. failed: the call failed for good.';
