-- Leases. The functions in Rust are in extension/src/sql_api/leases.rs.

CREATE FUNCTION idem_acquire(
    id text, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_text_wrapper';
COMMENT ON FUNCTION idem_acquire(text, text, interval) IS
    'Leases a message for processing outside the transaction: commit, process the message, then '
    'call idem_complete with the token. outcome: see the type idem_lease_outcome. attempt counts '
    'this lease. After in_progress retry after retry_after; a received message is in_progress '
    'too, because idem_next returns it. lease: 1 millisecond to 1 day. Never waits for another '
    'transaction that claims, leases or receives the message, at any isolation level. Errors: '
    '22004 (null argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of '
    'another id), 25006 (standby or read-only transaction), 42601 (SELECT (idem_acquire(...)).*).';

CREATE FUNCTION idem_acquire(
    id uuid, destination text, lease interval DEFAULT '30 seconds', OUT outcome idem_lease_outcome,
    OUT token bigint, OUT attempt integer, OUT retry_after interval, OUT last_error text
)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_acquire_uuid_wrapper';

CREATE FUNCTION idem_complete(
    id text, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_wrapper';
COMMENT ON FUNCTION idem_complete(text, text, bigint, jsonb) IS
    'Turns the lease that the token proves into the claim, and records the effects, in the '
    'current transaction. Returns the message ids of the effects. Errors: 22004 (null argument), '
    '22023 (invalid argument), 23000 (the hash of this id is the hash of another id), 25006 '
    '(standby or read-only transaction), 54000 (larger than idem.max_payload), 55000 (the lease '
    'is lost; nothing is written), 55P03 (a running transaction is claiming the message: try '
    'again).';

CREATE FUNCTION idem_complete(
    id uuid, destination text, token bigint, effects jsonb DEFAULT '[]'
) RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_uuid_wrapper';

CREATE FUNCTION idem_extend(
    id          text,
    destination text,
    token       bigint,
    lease       interval DEFAULT '30 seconds'
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    p            idem.pending_0;
BEGIN
    PERFORM idem.check_lease(lease);
    PERFORM idem.check_transaction('idem_extend()');
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_extend.id, idem_extend.destination,
                           idem_extend.token);
    p.due_at := clock_timestamp() + lease;
    PERFORM idem.write_pending(table_number, p);
END
$$;
COMMENT ON FUNCTION idem_extend(text, text, bigint, interval) IS
    'Extends the lease that the token proves: it ends after the interval lease (1 millisecond to '
    '1 day) from now. Errors: 22004 (null argument), 22023 (invalid argument), 23000 (the hash of '
    'this id is the hash of another id), 25000 (not READ COMMITTED), 25006 (standby or read-only '
    'transaction), 55000 (the lease is lost).';

CREATE FUNCTION idem_extend(
    id          uuid,
    destination text,
    token       bigint,
    lease       interval DEFAULT '30 seconds'
) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_extend(id::text, destination, token, lease);

CREATE FUNCTION idem_release(
    id          text,
    destination text,
    token       bigint,
    error       text    DEFAULT NULL,
    final       boolean DEFAULT false
) RETURNS interval
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    table_number integer;
    p            idem.pending_0;
    policy       idem.retry_policy;
    pause        interval;
BEGIN
    IF idem_release.final IS NULL THEN
        RAISE EXCEPTION 'final must not be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF idem_release.final AND idem_release.error IS NULL THEN
        RAISE EXCEPTION 'error must not be null when final is true'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Give the reason why the message must not be retried.';
    END IF;
    PERFORM idem.check_transaction('idem_release()');
    table_number := idem.enter_pending();
    p := idem.held_pending(table_number, idem_release.id, idem_release.destination,
                           idem_release.token);
    IF idem_release.error IS NULL THEN
        -- The message was not processed, so the attempt does not count. If the last error belongs
        -- to this attempt, the attempt had ended before: the lease is an exhausted one, for which
        -- idem_acquire counted no attempt.
        IF (p.errors -> -1 ->> 'attempt')::integer IS DISTINCT FROM p.attempt THEN
            p.attempt := p.attempt - 1;
        END IF;
        p.state := 'r';
        pause := '0';
    ELSE
        policy := idem.policy_of(p.destination);
        final := idem_release.final OR idem_release.error LIKE ANY (policy.final_errors);
        p.errors := idem.note_failure(p.errors, p.attempt, idem_release.error, final);
        p.state := 'w';
        pause := CASE WHEN NOT final AND p.attempt < policy.max_attempts
                      THEN idem.pause_after(policy, p.attempt) END;
    END IF;
    IF pause IS NULL AND p.payload_slice IS NOT NULL THEN
        PERFORM idem.make_dead_letter(table_number, p);
    ELSE
        -- The message can be leased again. If no attempt is left, it is a message of a broker
        -- (without a payload): the next idem_acquire returns exhausted, and the consumer calls
        -- idem_bury.
        p.due_at := clock_timestamp() + coalesce(pause, '0');
        PERFORM idem.write_pending(table_number, p);
    END IF;
    PERFORM idem.wake_consumers();
    RETURN pause;
END
$$;
COMMENT ON FUNCTION idem_release(text, text, bigint, text, boolean) IS
    'Releases the lease that the token proves. Returns the time until the next attempt, or null '
    'if there is none. Without an error the attempt does not count and the message is due at '
    'once; the release of an exhausted lease changes no count. With an error the attempt counts, '
    'and the message waits for its back-off. A received message moves to the dead letters if no '
    'attempt is left, if final is true, or if the error matches a pattern of final_errors; for a '
    'message of a broker the next idem_acquire then returns exhausted. Errors: 22004 (null '
    'argument), 22023 (invalid argument), 23000 (the hash of this id is the hash of another id), '
    '25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 (the lease is '
    'lost).';

CREATE FUNCTION idem_release(
    id          uuid,
    destination text,
    token       bigint,
    error       text    DEFAULT NULL,
    final       boolean DEFAULT false
) RETURNS interval
LANGUAGE sql SET search_path = pg_catalog, pg_temp
RETURN @extschema@.idem_release(id::text, destination, token, error, final);
