-- The types of the answers.

CREATE TYPE idem_outcome AS ENUM ('claimed', 'duplicate', 'in_progress', 'mismatch', 'expired');
COMMENT ON TYPE idem_outcome IS 'What became of a claim. claimed: process it. duplicate: it was processed. in_progress: somebody is at it. mismatch: processed with another fingerprint. expired: too old to be told from a duplicate.';

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
COMMENT ON TYPE idem_effect IS 'An outgoing message as it was recorded. A JSON payload is its UTF-8 text.';
