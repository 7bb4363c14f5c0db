-- Hand-over: the durable inbox receives effects of the outbox of the same database.

CREATE FUNCTION idem.with_trace(headers jsonb, traceparent text) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN traceparent IS NULL THEN headers
            ELSE coalesce(headers, '{}')
                 OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('traceparent', traceparent)
       END;
COMMENT ON FUNCTION idem.with_trace(jsonb, text) IS
    'Returns the headers with the trace context added, from which the receiving functions read it.';

CREATE FUNCTION idem_hand_over(
    relay       text,
    topics      text[],
    partition   integer DEFAULT 0,
    max_effects integer DEFAULT 1000,
    max_bytes   bigint  DEFAULT 16777216
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this      idem.relay := idem.check_relay(idem_hand_over.relay, idem_hand_over.partition);
    effect    record;
    token     bigint;
    effects   integer;
    receiving boolean;
    at_most   integer := max_effects;
    refused   bigint[] := '{}';
    reasons   text[] := '{}';
BEGIN
    IF topics IS NULL OR array_position(topics, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'topics and each topic must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- The batch, its messages and its acknowledgement are one transaction, so no other transaction
    -- sees the lease. If an effect cannot be received, the batch is rolled back. The next attempt
    -- leases a batch that ends with this effect, and parks the effect.
    LOOP
        effects := 0;
        receiving := false;
        BEGIN
            FOR effect IN
                SELECT *
                  FROM @extschema@.idem_relay_next(idem_hand_over.relay, partition, at_most,
                                                   max_bytes => idem_hand_over.max_bytes)
            LOOP
                effects := effects + 1;
                token := effect.token;
                IF effect.seq = ANY (refused) THEN
                    PERFORM idem.park(this, idem.held_batch(this, partition, token), NULL,
                                      effect.seq,
                                      reasons[array_position(refused, effect.seq)]);
                ELSIF effect.topic = ANY (topics) THEN
                    receiving := true;
                    PERFORM @extschema@.idem_receive_bytes(
                        effect.message_id, effect.topic, effect.payload,
                        idem.with_trace(effect.headers, effect.traceparent), effect.key,
                        NULL::timestamptz, effect.type, effect.content_type);
                    receiving := false;
                END IF;
            END LOOP;
            IF effects > 0 THEN
                PERFORM @extschema@.idem_relay_ack(idem_hand_over.relay, partition, token);
            END IF;
            RETURN effects;
        EXCEPTION
            -- These are errors of one message. All other errors are errors of the environment, and
            -- a retry can succeed.
            WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
                IF NOT receiving THEN
                    RAISE;
                END IF;
                refused := refused || effect.seq;
                reasons := reasons || left(format('%s: %s', SQLSTATE, SQLERRM), 2000);
                at_most := effects;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idem_hand_over(text, text[], integer, integer, bigint) IS
    'Delivers the next batch of a relay into the durable inbox of this database, in one '
    'transaction: an effect with a topic in topics is received for the destination of that name, '
    'other effects are skipped, and the batch is acknowledged. An effect that cannot be received '
    'is parked with its error. max_effects and max_bytes: as for idem_relay_next. Returns the '
    'number of effects in the batch; 0 if there are no effects or another process holds the lease '
    'of the partition. Errors: 22004 (null argument), 22023 (invalid argument), 42704 (no such '
    'relay), 25000 (not READ COMMITTED), 25006 (standby or read-only transaction), 55000 '
    '(transaction ids went backwards).';
