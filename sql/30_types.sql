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
